// Which rank threads of a world run: as many as there are cores, the lowest ranks first.
//
// A world of hundreds of ranks fits its cores only in turns. Threads that all run at once each get
// as far as their next call, and the activations of every rank are alive together. With slots the
// first ranks go on until nothing but the rest of the world can help them, which is after their
// backward pass; then the next ranks begin theirs. Neighbours (tp is the innermost axis) run
// together. Nothing that a rank computes depends on the order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <set>

namespace shardproof::sim {

class RunSlots {
 public:
  RunSlots(int64_t rank_count, int64_t slot_count);

  // The rank's thread begins a case: sleeps until a slot is free. A thread that never enters runs
  // without one.
  void enter(int64_t rank);
  void leave(int64_t rank);  // its case is over

  // Gives the slot away and sleeps until a slot is free and wake(rank) was called once more than it
  // has slept, before or after.
  void sleep(int64_t rank);
  void wake(int64_t rank);

  // Ranks that are awake and wait for a slot.
  int64_t waiting();

  // From now on whoever is awake runs: nobody waits for the slot of a rank that hangs.
  void open();
  // For the next case; nobody sleeps.
  void reset();

 private:
  struct Seat {
    std::condition_variable changed;
    bool entered = false;
    bool asleep = false;
    int64_t wakes = 0;  // that came before it slept
  };

  Seat& seat(int64_t rank);
  void ask(int64_t rank);  // for a slot, once awake
  void give_back();
  void run(int64_t rank);

  const int64_t slot_count_;
  std::mutex mutex_;
  std::deque<Seat> seats_;
  std::set<int64_t> ready_;  // awake, without a slot
  int64_t free_;
  bool open_ = false;
};

}  // namespace shardproof::sim
