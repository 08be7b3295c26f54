#include "base/shortage.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <new>
#include <system_error>

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

}  // namespace

std::string shortage_text(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return memory_text("");
  const std::string what = error.what();
  if (what.find("DefaultCPUAllocator") != std::string::npos) {
    const std::string before = "you tried to allocate ";
    const size_t start = what.find(before);
    const size_t end = what.find(" bytes", start);
    if (start == std::string::npos || end == std::string::npos) return memory_text("");
    return memory_text(" and asked for " +
                       what.substr(start + before.size(), end - start - before.size()) +
                       " bytes more");
  }
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system == nullptr || system->code() != std::errc::resource_unavailable_try_again) return "";
  return "no further thread or process could be started; choose a smaller mesh, or raise the "
         "limit (ulimit -u, ulimit -v, pids.max)";
}

}  // namespace shardproof
