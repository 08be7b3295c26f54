// Says on standard error what a command without a pool waits for.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace shardproof::sim::cli {

// Once a second has passed, and again every ten seconds, until it is destroyed.
class WaitNote {
 public:
  explicit WaitNote(std::string what);
  ~WaitNote();
  WaitNote(const WaitNote&) = delete;
  WaitNote& operator=(const WaitNote&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace shardproof::sim::cli
