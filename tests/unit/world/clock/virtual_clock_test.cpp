// Virtual time: overlapping, waiting, and equal times in every schedule. (tests/cli/clock_test.py
// has whole scenarios: synchronous calls, equal times in every run, nodes with one link for their
// ranks.)
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "sim/world/clock/op_meter.h"
#include "tests/support/configured_world.h"

namespace shardproof::tests {

using sim::Stretch;
using sim::StretchKind;

namespace {

// The links of link_cost_test.cpp; computation takes the time that the test passes to advance().
sim::WorldSpec timed_world() {
  sim::WorldSpec world;
  world.in_node = {.latency_us = 10, .gb_per_s = 1};
  world.compute = sim::ComputeTime::kFixed;
  world.op_us = 0;
  return world;
}

// Its all_reduce over two takes 28 us.
at::Tensor kilo() { return at::ones({1000}, at::kDouble); }

double total_us(const std::vector<Stretch>& timeline) {
  return time_of(timeline, StretchKind::kCompute) + time_of(timeline, StretchKind::kWaiting) +
         time_of(timeline, StretchKind::kExposed);
}

ConfiguredRuns run_two(const std::function<void(ConfiguredRank&, Communicator&)>& body,
                       const sim::WorldSpec& world = timed_world()) {
  auto runs = run_configured(world, Mesh({{"tp", 2}}),
                             [&](ConfiguredRank& rank) { body(rank, rank.comm.along("tp")); });
  for (const std::string& error : runs.errors) CHECK(error == "");
  return runs;
}

TEST_CASE("an all_reduce hides behind computing exactly as long as both last", "[clock]") {
  const double computing_us = GENERATE(0.0, 5.0, 20.0, 28.0, 50.0);
  const auto runs = run_two([&](ConfiguredRank& rank, Communicator& tp) {
    PendingCollective pending = tp.all_reduce_async(kilo(), ReduceOp::kSum, "gradients");
    rank.clock.advance(computing_us);
    pending.wait();
  });
  for (size_t rank = 0; rank < 2; ++rank) {
    CHECK(runs.times_us[rank] == Approx(std::max(28.0, computing_us)).epsilon(1e-12));
    const double exposed = time_of(runs.timelines[rank], StretchKind::kExposed);
    const double communication = time_of(runs.timelines[rank], StretchKind::kCommunication);
    CHECK(communication == Approx(28).epsilon(1e-12));
    CHECK(communication - exposed == Approx(std::min(28.0, computing_us)).epsilon(1e-12));
    CHECK(time_of(runs.timelines[rank], StretchKind::kWaiting) == 0);
    CHECK(total_us(runs.timelines[rank]) == Approx(runs.times_us[rank]).epsilon(1e-12));
  }
}

TEST_CASE("a rank that computes slowly makes the others wait, and is named", "[clock]") {
  sim::WorldSpec world = timed_world();
  world.stragglers = {{.rank = 1, .compute = 3, .links = 1}};
  const auto runs = run_two(
      [&](ConfiguredRank& rank, Communicator& tp) {
        rank.clock.advance(10);
        tp.all_reduce(kilo(), ReduceOp::kSum, "sum");
      },
      world);
  CHECK(runs.times_us == std::vector<double>{58, 58});
  CHECK(time_of(runs.timelines[0], StretchKind::kWaiting) == 20);
  CHECK(time_of(runs.timelines[1], StretchKind::kWaiting) == 0);
  for (const auto& timeline : runs.timelines) {
    CHECK(time_of(timeline, StretchKind::kExposed) == 28);
    CHECK(timeline.back().last_rank == 1);
  }
}

TEST_CASE("transfers of one group follow each other, those of two groups share the links",
          "[clock]") {
  SECTION("one group") {
    const auto runs = run_two([&](ConfiguredRank&, Communicator& tp) {
      PendingCollective first = tp.all_reduce_async(kilo(), ReduceOp::kSum, "first");
      PendingCollective second = tp.all_reduce_async(kilo(), ReduceOp::kSum, "second");
      second.wait();
      first.wait();
    });
    CHECK(runs.times_us == std::vector<double>{56, 56});
    CHECK(time_of(runs.timelines[0], StretchKind::kExposed) == 56);
  }
  SECTION("two groups") {
    std::vector<double> first_over_us(2);
    const auto runs = run_two([&](ConfiguredRank& rank, Communicator& tp) {
      PendingCollective first = tp.all_reduce_async(kilo(), ReduceOp::kSum, "first");
      rank.clock.advance(4);
      PendingCollective second =
          rank.comm.world().all_reduce_async(kilo(), ReduceOp::kSum, "second");
      first.wait();
      first_over_us[static_cast<size_t>(rank.rank)] = rank.clock.now_us();
      second.wait();
    });
    // The first has 20 of latency, then moves 4 of its 8 alone and 4 at half the pace. The second,
    // made at 4, has 20 of latency, then moves 4 at half the pace until 32 and 4 alone.
    CHECK(first_over_us == std::vector<double>{32, 32});
    CHECK(runs.times_us == std::vector<double>{36, 36});
  }
}

// Two nodes of two ranks with one link each.
sim::WorldSpec two_nodes() {
  sim::WorldSpec world = timed_world();
  world.ranks_per_node = 2;
  world.inter_node = {.latency_us = 50, .gb_per_s = 0.5, .per_node = true};
  return world;
}

TEST_CASE("groups that meet on the links take the same times in every schedule", "[clock]") {
  const auto run = [](int64_t slow) {
    return run_configured(two_nodes(), Mesh({{"dp", 2}, {"tp", 2}}), [&](ConfiguredRank& rank) {
      for (int64_t step = 0; step < 12; ++step) {
        const std::string label = "step " + std::to_string(step);
        if (rank.rank == slow) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        auto gradient = rank.comm.along("dp").all_reduce_async(kilo(), ReduceOp::kSum, label);
        rank.clock.advance(static_cast<double>((7 * rank.rank + 3 * step) % 11));
        rank.comm.along("tp").all_reduce(kilo(), ReduceOp::kSum, label);
        if (rank.rank == (slow + 1) % 4) std::this_thread::yield();
        auto all = rank.comm.world().all_gather_async(kilo(), 0, label);
        rank.clock.advance(static_cast<double>(5 * (rank.rank % 3)));
        gradient.wait();
        all.wait();
      }
    });
  };
  const auto first = run(0);
  for (const std::string& error : first.errors) CHECK(error == "");
  for (int64_t slow = 1; slow < 4; ++slow) {
    const auto again = run(slow);
    CHECK(again.times_us == first.times_us);
    CHECK((again.timelines == first.timelines));
  }
}

TEST_CASE("a ring of messages takes its messages' time", "[clock]") {
  const auto runs = run_configured(timed_world(), Mesh({{"cp", 3}}), [](ConfiguredRank& rank) {
    Communicator& cp = rank.comm.along("cp");
    for (int step = 0; step < 2; ++step) {
      PendingCollective sent = cp.send_async(kilo(), (rank.rank + 1) % 3, "ring");
      PendingCollective got = cp.recv_async(kilo(), (rank.rank + 2) % 3, "ring");
      rank.clock.advance(4);  // attention over the local block
      got.wait();
      sent.wait();
    }
  });
  for (const double time : runs.times_us) CHECK(time == 36);  // two messages of 10 + 8
}

TEST_CASE("calls before the clock runs and while it pauses take no time", "[clock]") {
  const auto runs = run_two([&](ConfiguredRank& rank, Communicator& tp) {
    rank.clock.stop();
    tp.all_reduce(kilo(), ReduceOp::kSum, "set-up");
    rank.clock.start();
    rank.clock.advance(3);
    tp.barrier("begin");
  });
  CHECK(runs.times_us == std::vector<double>{13, 13});
  CHECK(runs.timelines[0].size() == 3);  // computing, the barrier's exposed time, the barrier
}

TEST_CASE("an op is counted once, a product with its operations", "[clock]") {
  sim::world::OpMeter meter(2, 1e-3);
  const at::Tensor left = at::ones({4, 5}, at::kDouble), right = at::ones({5, 6}, at::kDouble);
  CHECK(meter.take_us() == 4);
  left.mm(right);
  CHECK(meter.take_us() == 2 + 240);
  left.matmul(right);  // calls mm
  CHECK(meter.take_us() == 2 + 240);
  at::linear(left, right.t(), at::ones({6}, at::kDouble));  // t, ones, linear, which calls addmm
  CHECK(meter.take_us() == 3 * 2 + 240);
  CHECK(meter.take_us() == 0);
}

TEST_CASE("measured computing follows the thread's own time", "[clock]") {
  sim::WorldSpec world;
  world.compute_factor = 1000;  // more than wall time could be
  const auto runs = run_two(
      [](ConfiguredRank& rank, Communicator& tp) {
        at::Tensor x = at::ones({200, 200}, at::kDouble);
        if (rank.rank == 0) x = x.mm(x).mm(x);
        tp.barrier("both");
      },
      world);
  CHECK(runs.times_us[1] >= runs.times_us[0] * 0.5);  // rank 1 waited for rank 0
  CHECK(runs.times_us[0] > 1000);
  CHECK(time_of(runs.timelines[1], StretchKind::kWaiting) >
        time_of(runs.timelines[0], StretchKind::kWaiting));
}

}  // namespace
}  // namespace shardproof::tests
