// A private folder that is removed with all that lies in it.
#pragma once

#include <string>

#include "base/owned_fd.h"

namespace shardproof {

class TemporaryFolder {
 public:
  // Named `prefix` and six more characters; std::system_error where it cannot be made. First the
  // folders of this prefix go that killed processes of this user left: they have the mode of a
  // locked one, and their lock is free.
  explicit TemporaryFolder(std::string prefix);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  OwnedFd lock_;  // of the folder, held by this process and its forked children
};

}  // namespace shardproof
