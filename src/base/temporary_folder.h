// A private folder that is removed with all that lies in it.
#pragma once

#include <string>

namespace shardproof {

class TemporaryFolder {
 public:
  // Named `prefix` and six more characters; std::system_error where it cannot be made.
  explicit TemporaryFolder(std::string prefix);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace shardproof
