// Says on standard error what a command without a pool waits for.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "base/mutex.h"

namespace shardproof::sim::cli {

// Prints a line when `first` has passed, and again after each `then`, until it is destroyed.
class WaitNote {
 public:
  // `line` gets the seconds so far. It is called on a thread of the note's own.
  WaitNote(std::function<std::string(double seconds)> line, std::chrono::seconds first,
           std::chrono::seconds then);
  explicit WaitNote(const std::string& what);  // "reading, 11 s so far": after 1 s, then every 10 s
  ~WaitNote();
  WaitNote(const WaitNote&) = delete;
  WaitNote& operator=(const WaitNote&) = delete;

 private:
  Mutex mutex_;
  Condition ended_;
  bool is_over_ SHARDPROOF_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace shardproof::sim::cli
