// Groups that refuse a case for themselves, one after the other.
#include <ATen/ATen.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "base/error.h"
#include "sim/judge/verdict/verdict.h"
#include "sim/world/calls/call_trace.h"
#include "sim/world/rank/emulated_world_main.h"

namespace shardproof::sim::world {

using namespace judge;
namespace {

std::atomic<int> refused = 0;

// Each tp group learns in a call that it must refuse; rank 0 makes it when the other has refused.
std::string refuse_by_group(const CaseSpec&, const RankEnv& env) {
  CallTrace trace(env.on_call, env.on_wait);
  MeshComm comm(Mesh::training({.dp = 2, .tp = 2}), env.rank, env.make_backend, &trace);
  const std::chrono::milliseconds moment{50};
  if (env.rank == 0) {
    while (refused < 2) std::this_thread::sleep_for(moment);
    std::this_thread::sleep_for(moment);
  }
  comm.along("tp").all_reduce(at::ones({1}), ReduceOp::kMax, "notice");
  ++refused;
  throw Error({.kind = ErrorKind::kRefused, .what = "a batch of bool", .fix = "convert it"});
}

TEST_CASE("groups may refuse a case one after the other", "[refusals]") {
  EmulatedWorldMain world(4, DeviceKind::kCpu, {}, refuse_by_group);
  CaseSpec spec;
  spec.parallel.dp = spec.parallel.tp = 2;
  spec.judged = false;
  const CaseResult result = judge::judge(spec, world.run(spec, -1));
  CHECK(result.verdict == Verdict::kRefused);
  CHECK(result.message == "a batch of bool; convert it");
}

}  // namespace
}  // namespace shardproof::sim::world
