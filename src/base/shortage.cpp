#include "base/shortage.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>
#include <system_error>

#include "base/error.h"

namespace shardproof {
namespace {

constexpr double kMiB = 1 << 20;

std::string limit_text() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "the machine has no more";
  }
  return fmt::format("its limit is {:.0f} MiB (ulimit -v)",
                     static_cast<double>(limit.rlim_cur) / kMiB);
}

std::string memory_text(const std::string& wanted) {
  double pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const double mapped = pages * static_cast<double>(::sysconf(_SC_PAGE_SIZE)) / kMiB;
  return fmt::format(
      "memory ran out: the process has mapped {:.0f} MiB{}, and {}; choose smaller "
      "sizes or fewer ranks, or raise the limit",
      mapped, wanted, limit_text());
}

// The limit that the system had reached when it set `error`.
std::string fix_of(int error) {
  if (error == EMFILE) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return fmt::format(
        "raise the limit on open files, which is {} (ulimit -n), or choose a smaller mesh",
        limit.rlim_cur);
  }
  if (error == ENFILE) return "raise the system's limit on open files (fs.file-max)";
  if (error == EAGAIN) {
    return "raise the limit on processes (ulimit -u, pids.max), or choose a smaller mesh";
  }
  return "choose smaller sizes or a smaller mesh";
}

}  // namespace

std::string shortage_text(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return memory_text("");
  const std::string what = error.what();
  if (what.find("DefaultCPUAllocator") != std::string::npos) {
    const std::string before = "you tried to allocate ";
    const size_t start = what.find(before);
    const size_t end = what.find(" bytes", start);
    if (start == std::string::npos || end == std::string::npos) return memory_text("");
    return memory_text(" and requested " +
                       what.substr(start + before.size(), end - start - before.size()) +
                       " bytes more");
  }
  if (what.find(std::strerror(EMFILE)) != std::string::npos) {
    return what + "; " + fix_of(EMFILE);
  }
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system == nullptr || system->code() != std::errc::resource_unavailable_try_again) return "";
  return "no further thread or process could be started; choose a smaller mesh, or raise the "
         "limit (ulimit -u, ulimit -v, pids.max)";
}

void throw_shortage(const std::string& what, int error) {
  throw Error({.kind = ErrorKind::kBadInput,
               .what = what + ": " + std::strerror(error),
               .fix = fix_of(error),
               .code = kShortage});
}

void throw_if_too_many_files(const std::string& what, int error) {
  if (error == EMFILE || error == ENFILE) throw_shortage(what, error);
}

}  // namespace shardproof
