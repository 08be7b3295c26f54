// The verdict on a misused asynchronous call names its rank, and the world runs the next case.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "sim/judge/verdict/verdict.h"
#include "sim/world/rank/emulated_world_main.h"

namespace shardproof::sim {
namespace {

using Catch::Matchers::Contains;

// Rank 1 omits a wait, or writes to a buffer too early, according to `request`.
std::string misuse(const std::string& request, const RankEnv& env) {
  const Mesh mesh({{"tp", 2}});
  MeshComm comm(mesh, env.rank, env.make_backend, nullptr);
  at::Tensor shard = at::ones({3}, at::kDouble);
  PendingCollective pending = comm.along("tp").all_gather_async(shard, 0, "layers.1 weights");
  if (env.rank == 1 && request == "written") shard.mul_(2);
  if (env.rank == 0 || request != "not waited") pending.wait();
  RankReport report;
  report.rank = env.rank;
  return encode(report);
}

CaseResult judged(EmulatedWorldMain& world, const std::string& request) {
  CaseSpec spec;
  spec.parallel.tp = 2;
  spec.judged = false;
  return judge(spec, world.run(request, -1));
}

TEST_CASE("a misused asynchronous call is the verdict, and the world goes on", "[in_flight]") {
  EmulatedWorldMain world(2, DeviceKind::kCpu, {}, misuse);
  const CaseResult written = judged(world, "written");
  CHECK(written.verdict == Verdict::kFailed);
  CHECK(written.kind == ResultKind::kInFlight);
  CHECK_THAT(written.message, Contains("rank 1 wrote to the input of all_gather tp[0,1]") &&
                                  Contains("'layers.1 weights'") &&
                                  Contains("wait() for the call"));

  const CaseResult left = judged(world, "not waited");
  CHECK(left.verdict == Verdict::kFailed);
  CHECK(left.kind == ResultKind::kNeverWaited);
  CHECK_THAT(left.message, Contains("rank 1 started all_gather tp[0,1]") &&
                               Contains("'layers.1 weights'") && Contains("never waited"));

  const CaseResult right = judged(world, "as it should be");
  CHECK(right.verdict == Verdict::kMatch);
}

}  // namespace
}  // namespace shardproof::sim
