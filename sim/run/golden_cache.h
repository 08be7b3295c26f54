// Goldens kept between runs, outside of the tree. Equal keys mean equal bytes.
//
//   <folder>/<hash of the key>.golden   the blob as the golden wrote it
//   <folder>/<hash of the key>.key      digest of the blob, its size, then the key itself
//
// Both are written under a temporary name and renamed, the blob first, so that a reader sees a
// whole entry or none. An entry whose digest does not fit is a miss.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/owned_fd.h"

namespace shardproof::sim::run {

class GoldenCache {
 public:
  // With an empty folder, nothing is found and nothing is kept.
  explicit GoldenCache(std::filesystem::path folder, int64_t max_bytes = int64_t{2} << 30)
      : folder_(std::move(folder)), max_bytes_(max_bytes) {}
  // $XDG_CACHE_HOME/shardproof/golden or ~/.cache/shardproof/golden; empty when neither is known.
  static std::filesystem::path default_folder();
  // The case's golden_key plus everything else that its values depend on: the golden's code
  // (golden_code.h), LibTorch's version, the processor's capability and the number of threads.
  static std::string full_key(const std::string& golden_key);

  std::optional<OwnedFd> find(const std::string& key) const;  // open for reading
  // Keeps the blob in `fd`. A cache that cannot be written (read-only, full disk) keeps nothing.
  void keep(const std::string& key, int fd) const;
  // Removes the least recently used entries until the folder is within its limit.
  void trim() const;

 private:
  std::filesystem::path folder_;
  int64_t max_bytes_;
};

}  // namespace shardproof::sim::run
