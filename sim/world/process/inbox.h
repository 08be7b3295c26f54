// The worker's end of its channel: requests in order of arrival, read on a thread of its own so
// that an abort gets past a rank that waits, and so that the process ends the moment control has
// gone.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "base/mutex.h"
#include "sim/world/process/wire.h"

namespace shardproof::sim::world {

class Inbox {
 public:
  // `on_urgent` hears of every frame that is neither kRequest nor kGolden, on the reading thread.
  // When the channel closes the process exits with 0, unless `on_close` ends it otherwise.
  // `seal`: of the frames that come in, where they come over a network.
  Inbox(int socket, std::function<void(const Frame&)> on_urgent,
        std::optional<FrameSeal> seal = std::nullopt, std::function<void()> on_close = {});

  Frame next();  // waits for a kRequest or kGolden

 private:
  void read();

  int socket_;
  std::optional<FrameSeal> seal_;
  std::function<void(const Frame&)> on_urgent_;
  std::function<void()> on_close_;
  Mutex mutex_;
  Condition arrived_;
  std::deque<Frame> frames_ SHARDPROOF_GUARDED_BY(mutex_);
};

}  // namespace shardproof::sim::world
