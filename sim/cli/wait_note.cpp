#include "sim/cli/wait_note.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/elapsed.h"

namespace shardproof::sim::cli {

WaitNote::WaitNote(std::function<std::string(double)> line, std::chrono::seconds first,
                   std::chrono::seconds then)
    : thread_([this, line = std::move(line), first, then] {
        const auto start = std::chrono::steady_clock::now();
        const Lock lock(mutex_);
        auto next = start + first;
        while (!is_over_) {
          if (ended_.wait_until(mutex_, next)) continue;
          // Not by std::cerr, which first writes out std::cout and so may wait for its reader.
          std::fputs(("shardproof: " + line(seconds_since(start)) + "\n").c_str(), stderr);
          next += then;
        }
      }) {}

WaitNote::WaitNote(const std::string& what)
    : WaitNote([what](double seconds) { return fmt::format("{}, {:.0f} s so far", what, seconds); },
               std::chrono::seconds(1), std::chrono::seconds(10)) {}

WaitNote::~WaitNote() {
  {
    const Lock lock(mutex_);
    is_over_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

}  // namespace shardproof::sim::cli
