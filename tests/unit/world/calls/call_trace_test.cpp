#include "sim/world/calls/call_trace.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "tests/support/run_ranks.h"

namespace shardproof::tests {
namespace {

using sim::world::CallTrace;

at::Tensor ones_of(std::vector<int64_t> shape) { return at::ones(shape, at::kDouble); }

TEST_CASE("a trace holds every call as text, by count, and on the clock", "[comm][trace]") {
  std::vector<std::string> heard;
  CallTrace first([&](const Call& call) { heard.push_back(name_of(call.op)); },
                  [&](const Call& call) { heard.push_back("wait " + name_of(call.op)); });
  CallTrace second;
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

  const auto timeline = first.timeline();
  REQUIRE(timeline.size() == 4);  // an asynchronous call and its wait are two
  CHECK(timeline[1].name == "all_gather tp[0,1] [2] float64 'weights'");
  CHECK(timeline[2].kind == sim::StretchKind::kWait);
  const auto start = [&](size_t i) { return timeline[i].start_us; };
  const auto end = [&](size_t i) { return start(i) + timeline[i].duration_us; };
  CHECK(start(1) <= start(3));
  CHECK(end(1) >= end(3));  // the gather spans the reduce
}

}  // namespace
}  // namespace shardproof::tests
