#include "sim/world/emulated/run_slots.h"

namespace shardproof::sim {

RunSlots::RunSlots(int64_t rank_count, int64_t slot_count)
    : slot_count_(slot_count), seats_(static_cast<size_t>(rank_count)), free_(slot_count) {}

RunSlots::Seat& RunSlots::seat(int64_t rank) { return seats_[static_cast<size_t>(rank)]; }

void RunSlots::enter(int64_t rank) {
  std::unique_lock lock(mutex_);
  Seat& own = seat(rank);
  own.entered = own.asleep = true;
  ask(rank);
  own.changed.wait(lock, [&own] { return !own.asleep; });
}

void RunSlots::leave(int64_t rank) {
  const std::lock_guard lock(mutex_);
  if (!seat(rank).entered) return;
  seat(rank).entered = false;
  give_back();
}

void RunSlots::sleep(int64_t rank) {
  std::unique_lock lock(mutex_);
  Seat& own = seat(rank);
  if (own.wakes > 0) {
    --own.wakes;
    return;
  }
  own.asleep = true;
  if (own.entered) give_back();
  own.changed.wait(lock, [&own] { return !own.asleep; });
}

void RunSlots::wake(int64_t rank) {
  const std::lock_guard lock(mutex_);
  Seat& other = seat(rank);
  if (!other.asleep || ready_.count(rank) != 0) {
    ++other.wakes;
  } else if (other.entered) {
    ask(rank);
  } else {
    run(rank);
  }
}

int64_t RunSlots::waiting() {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(ready_.size());
}

void RunSlots::ask(int64_t rank) {
  if (!open_ && free_ <= 0) {
    ready_.insert(rank);
    return;
  }
  --free_;
  run(rank);
}

void RunSlots::give_back() {
  ++free_;
  if (free_ <= 0 || ready_.empty()) return;
  const int64_t next = *ready_.begin();
  ready_.erase(ready_.begin());
  --free_;
  run(next);
}

void RunSlots::run(int64_t rank) {
  seat(rank).asleep = false;
  seat(rank).changed.notify_one();
}

void RunSlots::open() {
  const std::lock_guard lock(mutex_);
  open_ = true;
  for (const int64_t rank : ready_) {
    --free_;
    run(rank);
  }
  ready_.clear();
}

void RunSlots::reset() {
  const std::lock_guard lock(mutex_);
  open_ = false;
  free_ = slot_count_;
  ready_.clear();
  for (Seat& one : seats_) {
    one.entered = one.asleep = false;
    one.wakes = 0;
  }
}

}  // namespace shardproof::sim
