
#include <catch2/catch.hpp>

#include "sim/world/launch/deadline.h"

namespace shardproof::sim::world {
namespace {

TEST_CASE("a world hangs when neither calls nor CPU move for the whole window", "[hang_rule]") {
  HangRule rule(2.0);
  const auto at = [&](double now_s, uint64_t calls, std::vector<double> cpu_s) {
    return rule.sample({now_s, calls, std::move(cpu_s)});
  };
  double now = 0;
  CHECK_FALSE(at(now, 5, {1.0, 1.0}));
  for (int i = 0; i < 7; ++i) CHECK_FALSE(at(now += 0.25, 5, {1.0, 1.0}));
  CHECK(at(now += 0.25, 5, {1.0, 1.001}));

  SECTION("a call starts the window anew") {
    CHECK_FALSE(at(now += 0.25, 6, {1.0, 1.0}));
    for (int i = 0; i < 7; ++i) CHECK_FALSE(at(now += 0.25, 6, {1.0, 1.0}));
    CHECK(at(now += 0.25, 6, {1.0, 1.0}));
  }
  SECTION("so does one rank that uses more than 5% of a core") {
    CHECK_FALSE(at(now += 0.25, 5, {1.0, 1.001 + 0.014}));
    CHECK_FALSE(at(now += 0.25, 5, {1.0, 1.015}));
  }
  SECTION("idle threads that wake up now and then do not") {
    double cpu = 1.001;
    CHECK(at(now += 0.25, 5, {1.0, cpu += 0.0013}));  // 0.5%
  }
  SECTION("a launcher that was stopped for an hour has seen one sample only") {
    rule.restart();
    CHECK_FALSE(at(now, 5, {1.0, 1.0}));
    CHECK_FALSE(at(now += 3600, 5, {1.0, 1.0}));
  }
}

TEST_CASE("a deadline counts the time that a case computes", "[hang_rule]") {
  Deadline deadline(10, 2);
  SECTION("alone on two cores it is the clock's") {
    for (int s = 1; s <= 10; ++s) CHECK_FALSE(deadline.sample(s, {1.0 * s, 0.1 * s}));
    CHECK(deadline.sample(11, {11, 1.1}));
  }
  SECTION("four ranks that share two cores compute all the time") {
    CHECK_FALSE(deadline.sample(10, {5, 5, 5, 5}));
    CHECK(deadline.sample(10.5, {5.3, 5.3, 5.2, 5.2}));
  }
  SECTION("what other programs take does not count") {
    for (int s = 1; s <= 40; ++s) CHECK_FALSE(deadline.sample(s, {0.125 * s, 0.125 * s}));
    CHECK(deadline.sample(50, {10.2, 5}));
  }
  SECTION("threads of one process do not count more than the clock") {
    CHECK_FALSE(deadline.sample(9, {18}));
    CHECK(deadline.sample(11, {22}));
  }
  SECTION("a case that only waits may take ten times as long") {
    CHECK_FALSE(deadline.sample(99, {0, 0}));
    CHECK(deadline.sample(101, {0, 0}));
  }
  SECTION("ranks are asked for their ops long before the limit") {
    CHECK_FALSE(deadline.sample(2, {2}));
    CHECK_FALSE(deadline.is_near());
    CHECK_FALSE(deadline.sample(3, {3}));
    CHECK(deadline.is_near());
    CHECK_FALSE(deadline.sample(4, {4}, 17));
    CHECK_FALSE(deadline.is_near());
  }
  SECTION("a case whose ranks go on with calls or ops is slow, up to ten limits") {
    for (int s = 1; s <= 50; ++s) CHECK_FALSE(deadline.sample(s, {1.0 * s}, s / 9));
    CHECK(deadline.sample(60, {60}, 5));
    Deadline endless(10, 2);
    for (int s = 1; s <= 100; ++s) CHECK_FALSE(endless.sample(s, {1.0 * s}, s));
    CHECK(endless.sample(101, {101}, 101));
  }
}

}  // namespace
}  // namespace shardproof::sim::world
