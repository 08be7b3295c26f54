// Drawn schedules: one seed is one order of the ranks and of the ends of calls, and what a rank
// reads or writes too early depends on it.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <set>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tests/support/configured_world.h"
#include "tests/support/ones.h"

namespace shardproof::tests {
namespace {

constexpr int64_t kSchedules = 200;

sim::WorldSpec drawn(int64_t schedule) {
  sim::WorldSpec spec;
  spec.strict = false;
  spec.schedule = schedule;
  return spec;
}

// The different results of a body over all schedules, as the sums that each of three ranks returns.
std::set<std::vector<double>> results_of(
    const std::function<double(Communicator& tp, int64_t rank)>& body) {
  std::set<std::vector<double>> results;
  for (int64_t schedule = 1; schedule <= kSchedules; ++schedule) {
    std::vector<double> sums(3);
    const ConfiguredRuns runs =
        run_configured(drawn(schedule), Mesh({{"tp", 3}}), [&](ConfiguredRank& rank) {
          sums[static_cast<size_t>(rank.rank)] = body(rank.comm.along("tp"), rank.rank);
        });
    REQUIRE_FALSE(runs.failure);
    results.insert(sums);
  }
  return results;
}

double total_of(const at::Tensor& tensor) { return tensor.sum().item<double>(); }

TEST_CASE("one seed gives one order of the ranks, others give other orders", "[schedule]") {
  const auto order_of = [](int64_t schedule) {
    std::vector<int64_t> order;  // only one thread runs
    run_configured(drawn(schedule), Mesh({{"tp", 3}}), [&](ConfiguredRank& rank) {
      for (int i = 0; i < 4; ++i) {
        order.push_back(rank.rank);
        rank.comm.along("tp").all_reduce(ones(2), ReduceOp::kSum, "sum");
      }
    });
    return order;
  };
  std::set<std::vector<int64_t>> orders;
  for (int64_t schedule = 1; schedule <= 30; ++schedule) {
    const auto order = order_of(schedule);
    CHECK(order.size() == 12);
    CHECK(order == order_of(schedule));
    orders.insert(order);
  }
  CHECK(orders.size() > 20);
}

TEST_CASE("calls whose waits are in place give the same under every schedule", "[schedule]") {
  const auto results = results_of([](Communicator& tp, int64_t rank) {
    at::Tensor input = ones(5) * static_cast<double>(rank + 1);
    PendingCollective sums = tp.all_reduce_async(input, ReduceOp::kSum, "sums");
    const at::Tensor into = at::zeros({15}, at::kDouble);
    PendingCollective parts = tp.all_gather_into_async(into, input, 0, "parts");
    const at::Tensor shifted = tp.all_reduce(ones(1), ReduceOp::kMax, "beside");
    const at::Tensor total = sums.wait();
    parts.wait();
    input.fill_(100);
    return total_of(total) + total_of(into) + total_of(shifted) * 1e-3;
  });
  CHECK(results == std::set<std::vector<double>>{{60.001, 60.001, 60.001}});
}

TEST_CASE("a schedule changes no value where transfers take time", "[schedule]") {
  for (int64_t schedule = 1; schedule <= kSchedules; ++schedule) {
    sim::WorldSpec spec = drawn(schedule);
    spec.strict = schedule % 2 == 0;
    spec.in_node = {.latency_us = 3, .gb_per_s = 0.5};
    std::vector<double> sums(4);
    const ConfiguredRuns runs =
        run_configured(spec, Mesh({{"dp", 2}, {"tp", 2}}), [&](ConfiguredRank& rank) {
          Communicator &tp = rank.comm.along("tp"), &dp = rank.comm.along("dp");
          double total = 0;
          for (int i = 0; i < 3; ++i) {
            const at::Tensor own = ones(4) * static_cast<double>(rank.rank + i);
            PendingCollective ahead = dp.all_gather_async(own, 0, "ahead");
            total += total_of(tp.all_reduce(own, ReduceOp::kSum, "beside"));
            if (rank.rank == 3) tp.send(own, 0, "message");
            if (rank.rank == 2) total += total_of(tp.recv(own, 1, "message"));
            total += total_of(ahead.wait());
          }
          sums[static_cast<size_t>(rank.rank)] = total;
        });
    REQUIRE_FALSE(runs.failure);
    CHECK(sums == std::vector<double>{84, 108, 180, 156});
  }
}

TEST_CASE("an output that is read before its wait has two values", "[schedule]") {
  const auto results = results_of([](Communicator& tp, int64_t rank) {
    const at::Tensor into = at::zeros({3}, at::kDouble);
    PendingCollective parts = tp.all_gather_into_async(into, ones(1), 0, "parts");
    const double early = rank == 1 ? total_of(into) : 3;
    parts.wait();
    return early;
  });
  CHECK(results == std::set<std::vector<double>>{{3, 0, 3}, {3, 3, 3}});
}

TEST_CASE("an input that is written before the wait reaches the others changed or not",
          "[schedule]") {
  const auto results = results_of([](Communicator& tp, int64_t rank) {
    at::Tensor input = ones(1);
    PendingCollective parts = tp.all_gather_async(input, 0, "parts");
    if (rank == 1) input.fill_(7);
    return total_of(parts.wait());
  });
  CHECK(results == std::set<std::vector<double>>{{3, 3, 3}, {9, 9, 9}});
}

TEST_CASE("a call that nobody waits for may take effect later or never", "[schedule]") {
  const auto results = results_of([](Communicator& tp, int64_t) {
    const at::Tensor into = at::zeros({3}, at::kDouble);
    std::vector<PendingCollective> kept;
    kept.push_back(tp.all_gather_into_async(into, ones(1), 0, "parts"));
    for (int i = 0; i < 3; ++i) tp.barrier("next");
    const double late = total_of(into);
    kept.back().wait();
    return late;
  });
  CHECK(results.count({0, 0, 0}) == 1);
  CHECK(results.count({3, 3, 3}) == 1);
}

TEST_CASE("a rank that leaves the others waiting is found under a schedule", "[schedule]") {
  for (int64_t schedule = 1; schedule <= 20; ++schedule) {
    const ConfiguredRuns runs =
        run_configured(drawn(schedule), Mesh({{"tp", 3}}), [](ConfiguredRank& rank) {
          Communicator& tp = rank.comm.along("tp");
          tp.barrier("first");
          if (rank.rank != 2) tp.all_reduce(ones(2), ReduceOp::kSum, "alone");
        });
    REQUIRE(runs.failure);
    CHECK(runs.failure->code == "deadlock");
    CHECK(runs.failure->ranks.back() == 2);
  }
}

TEST_CASE("a caller that asks whether a call is done gets an answer", "[schedule]") {
  for (int64_t schedule = 1; schedule <= 20; ++schedule) {
    const ConfiguredRuns runs =
        run_configured(drawn(schedule), Mesh({{"tp", 2}}), [](ConfiguredRank& rank) {
          const auto pair = rank.backend("pair", {0, 1});
          std::vector<at::Tensor> tensors = {ones(4)};
          const auto work = pair->allreduce(tensors);
          while (!work->isCompleted()) {
          }
          work->wait();
          CHECK(total_of(tensors[0]) == 8);
        });
    CHECK_FALSE(runs.failure);
  }
}

}  // namespace
}  // namespace shardproof::tests
