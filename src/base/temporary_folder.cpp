#include "base/temporary_folder.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

namespace shardproof {
namespace {

namespace fs = std::filesystem;

// The folder, locked; invalid where another process holds it, or it cannot be opened.
OwnedFd locked_folder(const std::string& path) {
  OwnedFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder.valid() && ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) folder.reset();
  return folder;
}

// What a process made and had no time to remove. One that is a minute old has its lock.
void remove_left(const fs::path& prefix) {
  constexpr std::chrono::minutes kToLock{1};
  const std::string name = prefix.filename().string();
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(prefix.parent_path(), ignored)) {
    if (!entry.path().filename().string().starts_with(name)) continue;
    const auto made = entry.last_write_time(ignored);
    if (ignored || fs::file_time_type::clock::now() - made < kToLock) continue;
    if (locked_folder(entry.path().string()).valid()) fs::remove_all(entry.path(), ignored);
  }
}

}  // namespace

TemporaryFolder::TemporaryFolder(std::string prefix) : path_(std::move(prefix)) {
  remove_left(path_);
  path_ += "XXXXXX";
  if (::mkdtemp(path_.data()) == nullptr) throw std::system_error(errno, std::generic_category());
  lock_ = locked_folder(path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace shardproof
