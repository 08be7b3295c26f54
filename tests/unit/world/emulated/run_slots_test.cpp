// Rank threads take turns: at most as many run as there are slots, the lowest rank first.
#include "sim/world/emulated/run_slots.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

namespace shardproof::tests {
namespace {

using sim::world::RunSlots;

void until(const std::function<bool()>& reached) {
  while (!reached()) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

void join(std::vector<std::thread>& threads) {
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("no more ranks run than there are slots", "[comm][emulated]") {
  constexpr int64_t kRanks = 7, kSlots = 3, kRounds = 50;
  RunSlots slots(kRanks, kSlots);
  std::atomic<int64_t> running = 0, most = 0;
  const auto turn = [&] {
    const int64_t now = ++running;
    for (int64_t seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    std::this_thread::yield();
    --running;
  };
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      slots.enter(rank);
      for (int64_t round = 0; round < kRounds; ++round) {
        turn();
        slots.wake((rank + 1) % kRanks);  // each round of the ring wakes every rank once
        slots.sleep(rank);
      }
      slots.leave(rank);
    });
  }
  join(threads);
  CHECK(most <= kSlots);
  CHECK(slots.waiting() == 0);
}

TEST_CASE("the lowest rank that is ready gets the slot", "[comm][emulated]") {
  RunSlots slots(4, 1);
  slots.enter(0);
  std::vector<int64_t> order;
  std::vector<std::thread> threads;
  for (const int64_t rank : {2, 3, 1}) {
    threads.emplace_back([&, rank] {
      slots.enter(rank);
      order.push_back(rank);  // only one thread runs
      slots.leave(rank);
    });
    const auto waiting = static_cast<int64_t>(threads.size());
    until([&] { return slots.waiting() == waiting; });
  }
  slots.leave(0);
  join(threads);
  CHECK(order == std::vector<int64_t>{1, 2, 3});
}

TEST_CASE("a rank that was woken before it sleeps goes on", "[comm][emulated]") {
  RunSlots slots(2, 1);
  slots.enter(0);
  slots.wake(0);
  slots.sleep(0);  // returns
  slots.leave(0);
  SUCCEED();
}

TEST_CASE("after open() nobody waits for the slot of a rank that hangs", "[comm][emulated]") {
  RunSlots slots(4, 1);
  slots.enter(0);  // and never leaves
  std::atomic<int> went_on = 0;
  std::vector<std::thread> threads;
  for (int64_t rank = 1; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      slots.enter(rank);
      ++went_on;
      slots.leave(rank);
    });
  }
  until([&] { return slots.waiting() == 3; });
  CHECK(went_on == 0);
  slots.open();
  join(threads);
  CHECK(went_on == 3);
  slots.reset();
  slots.enter(0);  // the next case has all slots
  CHECK(slots.waiting() == 0);
}

TEST_CASE("a rank that never enters sleeps and wakes without a slot", "[comm][emulated]") {
  RunSlots slots(2, 1);
  slots.enter(0);
  std::atomic<bool> awake = false;
  std::thread outsider([&] {
    slots.sleep(1);
    awake = true;
    slots.leave(1);
  });
  slots.wake(1);
  outsider.join();
  CHECK(awake);
  std::thread second([&] {
    slots.enter(1);
    slots.leave(1);
  });
  until([&] { return slots.waiting() == 1; });  // a thread without a slot returns none
  slots.leave(0);
  second.join();
}

}  // namespace
}  // namespace shardproof::tests
