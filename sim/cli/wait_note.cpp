#include "sim/cli/wait_note.h"

#include <fmt/format.h>

#include <chrono>
#include <iostream>

#include "base/elapsed.h"

namespace shardproof::sim::cli {

WaitNote::WaitNote(std::string what)
    : thread_([this, what = std::move(what)] {
        const auto start = std::chrono::steady_clock::now();
        std::unique_lock lock(mutex_);
        auto next = start + std::chrono::seconds(1);
        while (!ended_.wait_until(lock, next, [this] { return is_over_; })) {
          std::cerr << fmt::format("shardproof: {}, {:.0f} s so far\n", what, seconds_since(start));
          next += std::chrono::seconds(10);
        }
      }) {}

WaitNote::~WaitNote() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

}  // namespace shardproof::sim::cli
