#include "sim/world/calls/call_trace.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "tests/support/run_ranks.h"

namespace shardproof::tests {
namespace {

using Catch::Matchers::Contains;
using sim::CallTrace;

at::Tensor ones_of(std::vector<int64_t> shape) { return at::ones(shape, at::kDouble); }

TEST_CASE("a trace holds every call as text, by count, and on the clock", "[comm][trace]") {
  std::vector<std::string> heard;
  CallTrace first(
      0, [&](const Call& call) { heard.push_back(name_of(call.op)); },
      [&](const Call& call) { heard.push_back("wait " + name_of(call.op)); });
  CallTrace second(1);
  try_emulated_ranks(Mesh({{"tp", 2}}),
                     [](MeshComm& comm, int64_t rank) {
                       Communicator& tp = comm.along("tp");
                       tp.all_reduce(ones_of({4, 16}).t(), ReduceOp::kSum, "layers.0 forward");
                       PendingCollective gather = tp.all_gather_async(ones_of({2}), 0, "weights");
                       tp.all_reduce(ones_of({3}), ReduceOp::kMax, "norm");
                       gather.wait();
                       comm.along("dp").all_reduce(ones_of({3}), ReduceOp::kSum,
                                                   "alone: not a call");
                     },
                     {&first, &second});

  CHECK(first.calls() ==
        std::vector<std::string>{"all_reduce(sum) tp[0,1] [16,4] float64 'layers.0 forward'",
                                 "all_gather tp[0,1] [2] float64 'weights'",
                                 "all_reduce(max) tp[0,1] [3] float64 'norm'"});
  CHECK(second.calls() == first.calls());
  CHECK(heard ==
        std::vector<std::string>{"all_reduce", "all_gather", "all_reduce", "wait all_gather"});
  CHECK(first.counts().at({"tp", "all_reduce"}) == 2);
  CHECK(first.counts().size() == 2);
  CHECK(first.findings().empty());

  const auto timeline = first.timeline();
  REQUIRE(timeline.size() == 4);  // an asynchronous call and its wait are two
  CHECK(timeline[1]["name"] == "all_gather tp[0,1] [2] float64 'weights'");
  CHECK(timeline[2]["kind"] == "wait");
  const auto start = [&](size_t i) { return timeline[i]["start_us"].get<double>(); };
  const auto end = [&](size_t i) { return start(i) + timeline[i]["duration_us"].get<double>(); };
  CHECK(start(1) <= start(3));
  CHECK(end(1) >= end(3));  // the gather spans the reduce
}

TEST_CASE("a pending collective that is dropped is a finding of its rank", "[comm][trace]") {
  CallTrace first(0), second(1);
  try_emulated_ranks(Mesh({{"tp", 2}}),
                     [](MeshComm& comm, int64_t rank) {
                       PendingCollective pending = comm.along("tp").all_reduce_async(
                           ones_of({4}), ReduceOp::kSum, "bucket 3");
                       if (rank == 0) pending.wait();
                     },
                     {&first, &second});
  CHECK(first.findings().empty());
  REQUIRE(second.findings().size() == 1);
  CHECK_THAT(second.findings()[0], Contains("never_waited: rank 1") && Contains("bucket 3"));
}

TEST_CASE("a pending collective that is held to the end is a finding of its own", "[comm][trace]") {
  CallTrace first(0), second(1);
  std::vector<PendingCollective> held;
  try_emulated_ranks(
      Mesh({{"tp", 2}}),
      [&](MeshComm& comm, int64_t rank) {
        Communicator& tp = comm.along("tp");
        PendingCollective one = tp.all_reduce_async(ones_of({4}), ReduceOp::kSum, "bucket 3");
        PendingCollective two = tp.all_reduce_async(ones_of({4}), ReduceOp::kSum, "bucket 4");
        one.wait();
        if (rank == 0)
          two.wait();
        else
          held.push_back(std::move(two));
        // Rank 1 may end only after rank 0 has waited, since its end with a call in flight stops
        // the world.
        tp.all_reduce(ones_of({1}), ReduceOp::kSum, "last");
      },
      {&first, &second});
  CHECK(first.left_pending().empty());
  REQUIRE(second.left_pending().size() == 1);
  CHECK_THAT(second.left_pending()[0],
             Contains("never_waited: rank 1 started all_reduce(sum)") && Contains("bucket 4"));
  CHECK(second.findings().empty());
  held.clear();  // drops the call, which is then found once
  CHECK(second.findings().size() == 1);
  CHECK(second.left_pending().empty());
}

TEST_CASE("a pending collective that an exception drops is no finding", "[comm][trace]") {
  CallTrace first(0), second(1);
  try_emulated_ranks(Mesh({{"tp", 2}}),
                     [](MeshComm& comm, int64_t rank) {
                       const PendingCollective pending = comm.along("tp").all_reduce_async(
                           ones_of({4}), ReduceOp::kSum, "bucket 3");
                       throw std::runtime_error("stop");
                     },
                     {&first, &second});
  CHECK(first.findings().empty());
  CHECK(second.findings().empty());
}

}  // namespace
}  // namespace shardproof::tests
