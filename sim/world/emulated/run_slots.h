// Chooses the rank threads that run: as many as there are cores, the lowest ranks first.
//
// If all threads of a large world ran, each would stop at its next call, and the activations of all
// ranks would be in memory together. With slots, the first ranks run until they need the others,
// which is after their backward; then the next ranks begin. Neighbors (tp is the innermost axis)
// run together. The order does not change a rank's results, which draw_order() puts to the test.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <set>

#include "base/mutex.h"

namespace shardproof::sim::world {

class RunSlots {
 public:
  RunSlots(int64_t rank_count, int64_t slot_count);

  // Prepares cases in which one rank runs at a time: the first when all have entered, and then the
  // one that is drawn whenever a rank yields, sleeps or leaves. Without a seed, ends this. Called
  // before the threads of a case begin.
  void draw_order(std::optional<uint64_t> seed);
  // In a drawn order: the next rank that runs is this one, if it is awake, else the lowest.
  void choose(int64_t rank);

  // Called when a rank's thread begins a case: sleeps until a slot is free. A thread that does not
  // call it runs without a slot.
  void enter(int64_t rank);
  void leave(int64_t rank);  // the rank's case has ended

  // In a drawn order, lets a rank run that is drawn from this one and those that are awake.
  void yield(int64_t rank);

  // Returns at once if wake(rank) was called before this sleep. Else releases the slot, and sleeps
  // until wake(rank) is called and a slot is free.
  void sleep(int64_t rank);
  void wake(int64_t rank);

  // The number of ranks that are awake and wait for a slot.
  int64_t waiting();

  // Lets all ranks that are awake run, because a rank that hangs does not release its slot.
  void open();
  // Prepares the next case. No rank may sleep.
  void reset();

 private:
  struct Seat {
    Condition changed;
    bool entered = false;
    bool asleep = false;
    int64_t wakes = 0;  // wakes without a sleep so far
  };

  Seat& seat(int64_t rank) SHARDPROOF_REQUIRES(mutex_);
  // Requests a slot for a rank that is awake.
  void ask(int64_t rank) SHARDPROOF_REQUIRES(mutex_);
  void give_back() SHARDPROOF_REQUIRES(mutex_);
  void run_next() SHARDPROOF_REQUIRES(mutex_);
  int64_t next_ready() SHARDPROOF_REQUIRES(mutex_);
  void run(int64_t rank) SHARDPROOF_REQUIRES(mutex_);

  const int64_t slot_count_;
  Mutex mutex_;
  std::deque<Seat> seats_ SHARDPROOF_GUARDED_BY(mutex_);
  // Ranks that are awake without a slot.
  std::set<int64_t> ready_ SHARDPROOF_GUARDED_BY(mutex_);
  int64_t free_ SHARDPROOF_GUARDED_BY(mutex_);
  bool open_ SHARDPROOF_GUARDED_BY(mutex_) = false;
  std::optional<std::mt19937_64> order_ SHARDPROOF_GUARDED_BY(mutex_);
  // By choose(), which draws no more.
  std::optional<int64_t> chosen_ SHARDPROOF_GUARDED_BY(mutex_);
  // Ranks of a drawn order that have not entered yet.
  int64_t missing_ SHARDPROOF_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardproof::sim::world
