#include "sim/world/emulated/run_slots.h"

#include <iterator>

namespace shardproof::sim::world {

RunSlots::RunSlots(int64_t rank_count, int64_t slot_count)
    : slot_count_(slot_count), seats_(static_cast<size_t>(rank_count)), free_(slot_count) {}

RunSlots::Seat& RunSlots::seat(int64_t rank) { return seats_[static_cast<size_t>(rank)]; }

void RunSlots::draw_order(std::optional<uint64_t> seed) {
  const Lock lock(mutex_);
  order_.reset();
  chosen_.reset();
  if (seed) order_.emplace(*seed);
  free_ = seed ? 1 : slot_count_;
  missing_ = seed ? static_cast<int64_t>(seats_.size()) : 0;
}

void RunSlots::choose(int64_t rank) {
  const Lock lock(mutex_);
  chosen_ = rank;
}

void RunSlots::enter(int64_t rank) {
  const Lock lock(mutex_);
  Seat& own = seat(rank);
  own.entered = own.asleep = true;
  if (missing_ > 0) --missing_;
  ask(rank);
  run_next();
  while (own.asleep) own.changed.wait(mutex_);
}

void RunSlots::leave(int64_t rank) {
  const Lock lock(mutex_);
  if (!seat(rank).entered) return;
  seat(rank).entered = false;
  give_back();
}

void RunSlots::yield(int64_t rank) {
  const Lock lock(mutex_);
  Seat& own = seat(rank);
  if (!order_ || open_ || !own.entered) return;
  own.asleep = true;
  ready_.insert(rank);
  give_back();
  while (own.asleep) own.changed.wait(mutex_);
}

void RunSlots::sleep(int64_t rank) {
  const Lock lock(mutex_);
  Seat& own = seat(rank);
  if (own.wakes > 0) {
    --own.wakes;
    return;
  }
  own.asleep = true;
  if (own.entered) give_back();
  while (own.asleep) own.changed.wait(mutex_);
}

void RunSlots::wake(int64_t rank) {
  const Lock lock(mutex_);
  Seat& other = seat(rank);
  if (!other.asleep || ready_.count(rank) != 0) {
    ++other.wakes;
  } else if (other.entered) {
    ask(rank);
    run_next();
  } else {
    run(rank);
  }
}

int64_t RunSlots::waiting() {
  const Lock lock(mutex_);
  return static_cast<int64_t>(ready_.size());
}

void RunSlots::ask(int64_t rank) {
  if (!open_ && (free_ <= 0 || order_)) {
    ready_.insert(rank);
    return;
  }
  --free_;
  run(rank);
}

void RunSlots::give_back() {
  ++free_;
  run_next();
}

void RunSlots::run_next() {
  if (free_ <= 0 || ready_.empty() || missing_ > 0) return;
  --free_;
  run(next_ready());
}

int64_t RunSlots::next_ready() {
  auto chosen = ready_.begin();
  if (chosen_) {
    if (const auto found = ready_.find(*chosen_); found != ready_.end()) chosen = found;
  } else if (order_) {
    std::advance(chosen, static_cast<int64_t>((*order_)() % ready_.size()));
  }
  const int64_t rank = *chosen;
  ready_.erase(chosen);
  return rank;
}

void RunSlots::run(int64_t rank) {
  seat(rank).asleep = false;
  seat(rank).changed.notify_one();
}

void RunSlots::open() {
  const Lock lock(mutex_);
  open_ = true;
  for (const int64_t rank : ready_) {
    --free_;
    run(rank);
  }
  ready_.clear();
}

void RunSlots::reset() {
  const Lock lock(mutex_);
  open_ = false;
  free_ = slot_count_;
  ready_.clear();
  for (Seat& one : seats_) {
    one.entered = one.asleep = false;
    one.wakes = 0;
  }
}

}  // namespace shardproof::sim::world
