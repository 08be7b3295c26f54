// When a world counts as hung.
#include "sim/world/launch/hang_rule.h"

#include <catch2/catch.hpp>

namespace shardproof::sim {
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

}  // namespace
}  // namespace shardproof::sim
