#include "policy/publish_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace shardproof {
namespace {

// What file systems and kernels say that do not know a flag of the call.
bool knows_no_flags(int error) { return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP; }

bool is_taken(int error) { return error == EEXIST || error == ENOTEMPTY; }

}  // namespace

int rename_with_flags(const char* from, const char* to, unsigned flags) {
  return ::renameat2(AT_FDCWD, from, AT_FDCWD, to, flags);
}

void publish_folder(const std::string& written, const std::string& name, const RenameCall& rename) {
  const auto fails = [&](unsigned flags) {
    return rename(written.c_str(), name.c_str(), flags) == 0 ? 0 : errno;
  };
  int error = fails(RENAME_NOREPLACE);
  if (is_taken(error)) {
    error = fails(RENAME_EXCHANGE);
    if (error == 0) std::filesystem::remove_all(written);
  }
  // Without flags the call takes a free name only: it replaces no folder that has contents.
  if (knows_no_flags(error)) error = fails(0);
  if (error == 0) return;
  if (is_taken(error)) {
    throw_bad_input(fmt::format("{} exists, and its file system cannot exchange two folders", name),
                    "delete it, or name another folder");
  }
  throw_bad_input(fmt::format("{} cannot be named: {}", name, std::strerror(error)),
                  "check the disk");
}

}  // namespace shardproof
