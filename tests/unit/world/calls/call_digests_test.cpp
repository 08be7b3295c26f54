// Hashes of real calls: all agree in a correct run, and for every op a single bit that flips in a
// transfer is reported with both ranks and the call.
#include "sim/world/calls/call_digests.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "sim/judge/verdict/call_digest.h"
#include "sim/world/calls/call_trace.h"
#include "sim/world/calls/fault_injection.h"
#include "tests/support/configured_world.h"

namespace shardproof::sim::world {

using namespace judge;
namespace {

constexpr int64_t kRanks = 3;

// Makes every op once, also with uneven parts and asynchronously; data differ between ranks.
void call_everything(Communicator& tp, int64_t rank) {
  const at::Tensor mine = at::arange(12, at::kDouble).view({6, 2}) + 100.0 * (rank + 1);
  const std::vector<int64_t> sizes = {1, 2, 3};
  const at::Tensor part = mine.narrow(0, 0, rank + 1);
  tp.all_reduce(mine, ReduceOp::kSum, "sum");
  tp.all_gather(mine, 1, "gathered");
  tp.all_gather(part, 0, "gathered uneven", sizes);
  tp.reduce_scatter(mine, 0, ReduceOp::kSum, "scattered sum");
  tp.all_to_all(mine, "exchanged");
  tp.all_to_all(mine, "exchanged uneven", sizes, std::vector<int64_t>(3, rank + 1));
  tp.broadcast(mine, 1, "told");
  tp.scatter(rank == 2 ? mine : at::Tensor(), part, 2, "dealt", sizes);
  tp.gather(part, 0, "collected", sizes);
  tp.barrier("all here");
  PendingCollective sent = tp.send_async(mine, (rank + 1) % kRanks, "passed on");
  PendingCollective got = tp.recv_async(mine, (rank + 2) % kRanks, "passed on");
  PendingCollective sum = tp.all_reduce_async(mine.to(at::kBFloat16), ReduceOp::kMax, "largest");
  got.wait();
  sent.wait();
  sum.wait();
}

struct DigestedRuns {
  explicit DigestedRuns(const std::vector<FaultSpec>& faults) : calls(kRanks) {
    tests::run_configured({}, Mesh({{"tp", kRanks}}), [&](tests::ConfiguredRank& rank) {
      FaultInjection injection(faults, rank.rank, {});
      CallDigests digests;
      digests.on_step(4);
      CallTrace listener([&](const Call& call) {
        digests.on_call();
        injection.before_call(call);
      });
      const auto factory =
          intercepted(rank.backend,
                      {[&](CallInProgress& call) { return digests.before_call(call); },
                       [&](CallInProgress& call) { return injection.before_backend_call(call); }});
      Communicator tp("tp", {0, 1, 2}, rank.rank, factory("tp", {0, 1, 2}), &listener);
      call_everything(tp, rank.rank);
      calls[static_cast<size_t>(rank.rank)] = digests.take();
      if (!injection.notes().empty()) fired = injection.notes()[0].fired;
    });
  }
  std::vector<DigestFinding> findings() const { return digest_findings(calls); }

  std::vector<std::vector<CallDigest>> calls;
  bool fired = false;
};

// The lowest bit of an element flips on this rank.
FaultSpec flip(int64_t rank, const std::string& label, const std::string& op, FaultSide side) {
  FaultSpec fault{.kind = FaultKind::kCorrupt, .rank = rank, .label = label, .op = op};
  fault.side = side;
  fault.bit = 0;
  fault.element = 1;
  return fault;
}

TEST_CASE("a call knows how many its rank made before it, hashed or not", "[digests]") {
  const DigestedRuns runs({});
  for (const std::vector<CallDigest>& calls : runs.calls) {
    const auto exchanged = std::find_if(calls.begin(), calls.end(), [](const CallDigest& call) {
      return call.call.label == "exchanged";
    });
    REQUIRE(exchanged != calls.end());
    CHECK(exchanged - calls.begin() == 3);  // the reduce_scatter is not hashed
    CHECK(exchanged->calls_before == 4);
  }
}

TEST_CASE("calls that work have hashes that agree", "[digests]") {
  const DigestedRuns clean({});
  CHECK(clean.findings().empty());
  for (const auto& of_rank : clean.calls) {
    CHECK(of_rank.size() == 11);  // all but the reduce_scatter and the barrier
    CHECK(of_rank[0].step == 4);
    CHECK_THAT(describe(of_rank[0].call),
               Catch::StartsWith("all_reduce(sum) tp[0,1,2] [6,2] float64"));
  }
}

TEST_CASE("one bit that flips in what arrives is found in every op that copies", "[digests]") {
  const std::string label =
      GENERATE(as<std::string>{}, "sum", "gathered", "gathered uneven", "exchanged",
               "exchanged uneven", "told", "dealt", "passed on", "largest");
  const std::string op = label == "passed on" ? "recv" : label == "sum" ? "all_reduce" : "";
  const DigestedRuns spoilt({flip(0, label, op, FaultSide::kOutput)});
  CAPTURE(label);
  CHECK(spoilt.fired);
  const auto findings = spoilt.findings();
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].step == 4);
  CHECK_THAT(describe(findings[0].made), Catch::Contains(label));
  CHECK_THAT(findings[0].message, Catch::StartsWith("rank 0 "));
}

TEST_CASE("one bit that flips in what is sent is found by those that get it", "[digests]") {
  const auto [label, op, receiver] =
      GENERATE(table<std::string, std::string, int64_t>({{"gathered", "all_gather", 0},
                                                         {"exchanged", "all_to_all", 0},
                                                         {"told", "broadcast", 0},
                                                         {"collected", "gather", 0},
                                                         {"passed on", "send", 2}}));
  const DigestedRuns spoilt({flip(1, label, op, FaultSide::kInput)});
  CAPTURE(label);
  CHECK(spoilt.fired);
  const auto findings = spoilt.findings();
  REQUIRE(findings.size() == 1);
  const std::string who = "rank " + std::to_string(receiver) + " received from rank 1";
  CHECK_THAT(findings[0].message, Catch::StartsWith(who));
}

TEST_CASE("one bit in an addend is a rounding more, the same for all: no hash tells", "[digests]") {
  const DigestedRuns spoilt({flip(1, "sum", "all_reduce", FaultSide::kInput)});
  CHECK(spoilt.fired);
  CHECK(spoilt.findings().empty());
}

}  // namespace
}  // namespace shardproof::sim::world
