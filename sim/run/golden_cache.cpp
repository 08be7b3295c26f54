#include "sim/run/golden_cache.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/cpu/Utils.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "base/digest.h"
#include "base/mapped_pages.h"
#include "base/read_text.h"
#include "sim/run/golden_code.h"

namespace shardproof::sim::run {
namespace fs = std::filesystem;
namespace {

std::string name_of_key(const std::string& key) {
  return fmt::format("{:016x}", digest_of(key.data(), key.size()));
}

// The inputs of kernel selection in LibTorch and its libraries: the processor's instruction sets,
// and the variables that hide some of them.
std::string instruction_sets() {
  std::set<std::string> names;
  for (const auto& [name, value] : at::cpu::get_cpu_capabilities()) {
    if (value.isBool() && value.toBool()) names.insert(name);
  }
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"}) {
    const char* value = std::getenv(name);
    if (value) names.insert(fmt::format("{}={}", name, value));
  }
  return fmt::format("{}", fmt::join(names, " "));
}

std::string key_file_text(const std::string& key, const MappedPages& golden) {
  return fmt::format("{:016x} {}\n{}", digest_of(golden.data(), golden.size()), golden.size(), key);
}

std::optional<std::string> read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool write_text(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return !file.fail();
}

bool copy_to(const fs::path& path, int fd, size_t size) {
  ::unlink(path.c_str());  // a process of the same number may have left something there
  const OwnedFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  off_t offset = 0;
  while (file.valid() && static_cast<size_t>(offset) < size) {
    if (::sendfile(file.get(), fd, &offset, size - static_cast<size_t>(offset)) <= 0) return false;
  }
  return file.valid();
}

}  // namespace

fs::path GoldenCache::default_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value ? value : "");
  };
  const fs::path cache = variable("XDG_CACHE_HOME");
  if (cache.is_absolute()) return cache / "shardproof" / "golden";
  const fs::path home = variable("HOME");
  return home.is_absolute() ? home / ".cache" / "shardproof" / "golden" : fs::path();
}

std::string GoldenCache::full_key(const std::string& golden_key) {
  return fmt::format("code {}\nlibtorch {}\ncpu {} {}\nthreads {}\n{}", golden_code(),
                     TORCH_VERSION, at::get_cpu_capability(), instruction_sets(),
                     at::get_num_threads(), golden_key);
}

std::optional<OwnedFd> GoldenCache::find(const std::string& key) const {
  if (folder_.empty()) return std::nullopt;
  const fs::path base = folder_ / name_of_key(key);
  const std::string key_file = base.string() + ".key", blob_file = base.string() + ".golden";
  if (!is_plain_file(key_file) || !is_plain_file(blob_file)) return std::nullopt;
  const auto entry = read_text(key_file);
  if (!entry) return std::nullopt;
  OwnedFd blob(::open(blob_file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!blob.valid()) return std::nullopt;
  const auto mapped = MappedPages::of_file(blob.get(), false);
  if (mapped.data() == nullptr || *entry != key_file_text(key, mapped)) return std::nullopt;
  ::futimens(blob.get(), nullptr);  // marks it as just used
  return blob;
}

void GoldenCache::keep(const std::string& key, int fd) const {
  if (folder_.empty()) return;
  const auto mapped = MappedPages::of_file(fd, false);
  if (mapped.data() == nullptr || static_cast<int64_t>(mapped.size()) > max_bytes_ / 2) return;
  std::error_code ignored;
  fs::create_directories(folder_, ignored);
  const std::string base = (folder_ / name_of_key(key)).string();
  const std::string temporary = fmt::format("{}.{}.tmp", base, ::getpid());
  const bool kept = copy_to(temporary, fd, mapped.size()) &&
                    ::rename(temporary.c_str(), (base + ".golden").c_str()) == 0 &&
                    write_text(temporary, key_file_text(key, mapped)) &&
                    ::rename(temporary.c_str(), (base + ".key").c_str()) == 0;
  if (!kept) fs::remove(temporary, ignored);
}

void GoldenCache::trim() const {
  struct Entry {
    fs::path path;
    fs::file_time_type used;
    int64_t bytes;
  };
  std::vector<Entry> entries;
  int64_t total = 0;
  std::error_code gone;
  const auto yesterday = fs::file_time_type::clock::now() - std::chrono::hours(24);
  for (const auto& file : fs::directory_iterator(folder_, gone)) {
    const auto changed = file.last_write_time(gone);
    const bool is_old = !gone && changed < yesterday;
    if (is_old && file.path().extension() == ".tmp")
      fs::remove(file.path(), gone);  // of a killed run
    if (file.path().extension() != ".golden") continue;
    const auto bytes = static_cast<int64_t>(file.file_size(gone));
    entries.push_back({file.path(), changed, bytes});
    total += bytes;
  }
  std::ranges::sort(entries, [](const Entry& a, const Entry& b) { return a.used < b.used; });
  for (const Entry& entry : entries) {
    if (total <= max_bytes_) return;
    fs::path key = entry.path;
    fs::remove(key.replace_extension(".key"), gone);
    fs::remove(entry.path, gone);
    total -= entry.bytes;
  }
}

}  // namespace shardproof::sim::run
