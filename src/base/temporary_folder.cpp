#include "base/temporary_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
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

// The mode of a folder whose maker has locked it, which no other program gives.
constexpr mode_t kLocked = S_ISVTX | S_IRWXU;

bool is_ours(const std::string& path) {
  struct stat facts {};
  return ::lstat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) &&
         (facts.st_mode & ~S_IFMT) == kLocked && facts.st_uid == ::geteuid();
}

// What processes of this user made, locked, and had no time to remove.
void remove_left(const fs::path& prefix) {
  const std::string name = prefix.filename().string();
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(prefix.parent_path(), ignored)) {
    const std::string path = entry.path().string();
    if (!entry.path().filename().string().starts_with(name) || !is_ours(path)) continue;
    if (locked_folder(path).valid()) fs::remove_all(path, ignored);
  }
}

}  // namespace

TemporaryFolder::TemporaryFolder(std::string prefix) : path_(std::move(prefix)) {
  remove_left(path_);
  path_ += "XXXXXX";
  if (::mkdtemp(path_.data()) == nullptr) throw std::system_error(errno, std::generic_category());
  lock_ = locked_folder(path_);
  if (lock_.valid()) ::fchmod(lock_.get(), kLocked);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace shardproof
