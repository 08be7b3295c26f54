// The enumeration of schedules: programs so small that their schedules can be counted by hand.
#include "sim/world/emulated/exact_schedule.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <set>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tests/support/configured_world.h"
#include "tests/support/ones.h"

namespace shardproof::tests {
namespace {

using sim::ScheduleDeviation;
using sim::ScheduleSearch;
using sim::ScheduleTrace;

struct Explored {
  ScheduleSearch search;
  std::set<std::vector<double>> results;  // the values that the ranks return
};

// Runs a body of two or more ranks under every schedule.
Explored explore(int64_t ranks, bool strict,
                 const std::function<double(ConfiguredRank& rank, Communicator& tp)>& body) {
  Explored explored;
  while (const auto schedule = explored.search.next()) {
    sim::WorldSpec spec;
    spec.strict = strict;
    spec.schedule = *schedule;
    std::vector<double> values(static_cast<size_t>(ranks));
    const ConfiguredRuns runs =
        run_configured(spec, Mesh({{"tp", ranks}}), [&](ConfiguredRank& rank) {
          values[static_cast<size_t>(rank.rank)] = body(rank, rank.comm.along("tp"));
        });
    REQUIRE_FALSE(runs.failure);
    REQUIRE(runs.schedule);
    explored.search.add(*schedule, *runs.schedule);
    if (!runs.schedule->redundant) explored.results.insert(values);
    REQUIRE(explored.search.explored() < 5000);
  }
  CHECK(explored.search.complete());
  return explored;
}

double value_of(const at::Tensor& tensor) { return tensor.sum().item<double>(); }

TEST_CASE("a schedule is a number that says where it deviates", "[schedule]") {
  const std::vector<std::vector<ScheduleDeviation>> all = {
      {}, {{0, 1}}, {{0, 3}}, {{5, 1}}, {{0, 1}, {1, 1}, {2, 2}, {40, 1}}, {{700, 2}, {3000, 1}}};
  std::set<int64_t> numbers;
  for (const std::vector<ScheduleDeviation>& deviations : all) {
    const auto schedule = sim::exact_schedule(deviations);
    REQUIRE(schedule);
    CHECK(sim::is_exact_schedule(*schedule));
    numbers.insert(*schedule);
    const std::vector<ScheduleDeviation> read = sim::deviations_of(*schedule);
    REQUIRE(read.size() == deviations.size());
    for (size_t i = 0; i < read.size(); ++i) {
      CHECK(read[i].node == deviations[i].node);
      CHECK(read[i].way == deviations[i].way);
    }
  }
  CHECK(numbers.size() == all.size());
  std::vector<ScheduleDeviation> many;
  for (int64_t node = 0; node < 40; ++node) many.push_back({.node = node, .way = 1});
  CHECK_FALSE(sim::exact_schedule(many));
}

TEST_CASE("a search visits each way of each node once", "[schedule]") {
  ScheduleSearch search;
  std::set<int64_t> seen;
  while (const auto schedule = search.next()) {
    CHECK(seen.insert(*schedule).second);
    search.add(*schedule, {.ways = {2, 3, 2}});
  }
  CHECK(search.explored() == 12);
  CHECK(search.complete());
  const ScheduleTrace trace =
      sim::trace_from_text(sim::trace_text({.ways = {2, 3}, .redundant = true}));
  CHECK(trace.ways == std::vector<int64_t>{2, 3});
  CHECK(trace.redundant);
}

TEST_CASE("synchronous calls have one schedule", "[schedule]") {
  const Explored explored = explore(3, false, [](ConfiguredRank&, Communicator& tp) {
    at::Tensor sum = ones(2);
    for (int i = 0; i < 4; ++i) sum = tp.all_reduce(sum, ReduceOp::kSum, "sum");
    return value_of(sum);
  });
  CHECK(explored.search.explored() == 1);
  CHECK(explored.search.redundant() == 0);
}

// The effect comes before the barrier, while its rank waits for it, or after it: 3 places on each
// rank. It cannot come before the barrier on one rank and after it on another.
TEST_CASE("a call in flight takes effect before or after what each rank does meanwhile",
          "[schedule]") {
  const auto body = [](ConfiguredRank&, Communicator& tp) {
    PendingCollective parts = tp.all_gather_async(ones(1), 0, "parts");
    tp.barrier("between");
    return value_of(parts.wait());
  };
  const Explored explored = explore(2, false, body);
  CHECK(explored.search.explored() == 3 * 3 - 2);
  CHECK(explored.results == std::set<std::vector<double>>{{2, 2}});
  CHECK(explore(3, false, body).search.explored() == 2 * 2 * 2 + 2 * 2 * 2 - 1);
  CHECK(explore(2, true, body).search.explored() == 1);
}

// Each effect has 3 places on each rank. Of the 9 pairs of places 6 put the first effect before the
// second, 1 the second before the first, and 2 leave it open; the ranks may not contradict.
TEST_CASE("calls in flight that share no memory commute", "[schedule]") {
  const Explored explored = explore(2, false, [](ConfiguredRank&, Communicator& tp) {
    PendingCollective first = tp.all_gather_async(ones(1), 0, "first");
    PendingCollective second = tp.all_gather_async(ones(1), 0, "second");
    return value_of(first.wait()) + value_of(second.wait());
  });
  CHECK(explored.search.explored() == 9 * 9 - 2 * 6 * 1);
  CHECK(explored.results == std::set<std::vector<double>>{{4, 4}});
}

TEST_CASE("a result that is read too early has all its values", "[schedule]") {
  const Explored explored = explore(3, false, [](ConfiguredRank& rank, Communicator& tp) {
    const at::Tensor into = at::zeros({3}, at::kDouble);
    PendingCollective parts = tp.all_gather_into_async(into, ones(1), 0, "parts");
    const double early = rank.rank == 1 ? value_of(into) : 3;
    parts.wait();
    return early;
  });
  CHECK(explored.results == std::set<std::vector<double>>{{3, 0, 3}, {3, 3, 3}});
}

// Two ranks change their inputs before the wait: each change is seen or not.
TEST_CASE("inputs that are written too early have all combinations of values", "[schedule]") {
  const Explored explored = explore(3, false, [](ConfiguredRank& rank, Communicator& tp) {
    at::Tensor input = ones(1);
    PendingCollective parts = tp.all_gather_async(input, 0, "parts");
    if (rank.rank != 0) input.fill_(rank.rank * 10);
    return value_of(parts.wait());
  });
  CHECK(explored.results ==
        std::set<std::vector<double>>{{3, 3, 3}, {12, 12, 12}, {22, 22, 22}, {31, 31, 31}});
}

TEST_CASE("a caller that polls sees a call end under every schedule", "[schedule]") {
  const Explored explored = explore(2, false, [](ConfiguredRank& rank, Communicator&) {
    const auto pair = rank.backend("pair", {0, 1});
    std::vector<at::Tensor> tensors = {ones(4)};
    const auto work = pair->allreduce(tensors);
    while (!work->isCompleted()) {
    }
    work->wait();
    return value_of(tensors[0]);
  });
  CHECK(explored.results == std::set<std::vector<double>>{{8, 8}});
}

}  // namespace
}  // namespace shardproof::tests
