#include "tests/multirank/small_ranks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <stdexcept>
#include <tuple>

#include "comm/mesh_comm.h"
#include "sim/world/rank/emulated_world_main.h"
#include "sim/world/rank/launcher_store.h"
#include "sim/world/rank/process_rank_main.h"

namespace shardproof::sim::world {
namespace {

class CallForwarder final : public CallListener {
 public:
  explicit CallForwarder(const RankEnv& env) : env_(env) {}
  void before_call(const Call& call) override { env_.on_call(call); }
  void before_wait(const Call& call) override { env_.on_wait(call); }

 private:
  const RankEnv& env_;
};

// What the rank calls instead of, or before, the second sum. True: it makes that sum as well.
bool act_out(const std::string& act, MeshComm& comm, int64_t rank, const at::Tensor& mine,
             const std::string& label) {
  Communicator& world = comm.world();
  const auto sum_over = [&](Communicator& group) { group.all_reduce(mine, ReduceOp::kSum, label); };
  if (act == "stray") throw std::runtime_error("stray exception");
  if (act == "pipe") ::raise(SIGPIPE);  // what a write to a dead rank's socket does
  if (act == "gather") world.all_gather(mine, 0, label);
  if (act == "max") world.all_reduce(mine, ReduceOp::kMax, label);
  if (act == "longer") world.all_reduce(at::cat({mine, mine}), ReduceOp::kSum, label);
  if (act == "square") world.all_reduce(mine.view({2, 2}), ReduceOp::kSum, label);
  if (act == "float") world.all_reduce(mine.to(at::kFloat), ReduceOp::kSum, label);
  if (act == "other label") world.all_reduce(mine, ReduceOp::kSum, "another layer");
  if (act == "root 0" || act == "root 1") world.broadcast(mine, act == "root 1" ? 1 : 0, label);
  if (act == "dim 0" || act == "dim 1") {
    world.all_gather(mine.view({2, 2}), act == "dim 1" ? 1 : 0, label);
  }
  if (act == "parts 1 3") world.reduce_scatter(mine, 0, ReduceOp::kSum, label, {1, 3});
  if (act == "parts 3 1") world.reduce_scatter(mine, 0, ReduceOp::kSum, label, {3, 1});
  if (act == "rows 1 3") world.all_to_all(mine, label, {1, 3}, {1, 2});
  if (act == "rows 2 2") world.all_to_all(mine, label, {2, 2}, {4, 2});
  if (act == "send" || act == "send first") world.send(mine, 1 - rank, label);
  if (act == "receive longer") world.recv(at::cat({mine, mine}), 1 - rank, label);
  if (act == "dp first") sum_over(comm.along("dp"));
  if (act == "dp last") sum_over(world), sum_over(comm.along("dp"));
  if (act == "start") std::ignore = world.all_reduce_async(mine, ReduceOp::kSum, label);
  if (act == "start and wait") world.all_reduce_async(mine, ReduceOp::kSum, label).wait();
  if (act == "write early") {
    PendingCollective pending = world.all_gather_async(mine, 0, label);
    mine.mul_(2);
    pending.wait();
  }
  return act != "dp last";
}

// "<pid>": this rank checked every sum.
std::string small_rank_main(const CaseSpec& spec, const RankEnv& env) {
  const std::string act = spec.options.value(fmt::format("rank {}", env.rank), "");
  CallForwarder listener(env);
  const Mesh mesh({{"dp", env.world_size}});
  const bool silent = spec.options.value("silent", false);  // no listener gets the calls
  MeshComm comm(mesh, env.rank, env.make_backend, silent ? nullptr : &listener);
  const bool unchecked = spec.options.value("unchecked", false);
  if (act.rfind("dp", 0) == 0) comm.along("dp");  // the group is there before the calls
  const int64_t calls = spec.options.value("calls", 3);
  for (int64_t call = 0; call < calls; ++call) {
    const at::Tensor mine = at::arange(4, at::kDouble) * (env.rank + 1) + call;
    const std::string label = fmt::format("layer {}", call);
    if (call == 1 && act == "leave") return "left";
    if (call == 1 && !act_out(act, comm, env.rank, mine, label)) continue;
    const at::Tensor sum = comm.world().all_reduce(mine, ReduceOp::kSum, label);
    const int64_t n = env.world_size;
    const at::Tensor right = at::arange(4, at::kDouble) * (n * (n + 1) / 2) + call * n;
    if (!unchecked && !at::equal(sum, right)) throw std::runtime_error("a wrong sum");
  }
  return fmt::format("{}", ::getpid());
}

}  // namespace

WorkerFunctions small_workers() {
  WorkerFunctions functions;
  functions.make_world = [](const WorldSetup& setup) {
    WorldSession session;
    if (setup.rank < 0) {
      const auto world = std::make_shared<EmulatedWorldMain>(setup.world_size, setup.device,
                                                             setup.hooks, small_rank_main);
      session.run = [world](const CaseSpec& spec, int fd) { return world->run(spec, fd); };
      session.abort = [world](const std::string& why) { world->abort(why); };
      return session;
    }
    const auto rank = std::make_shared<ProcessRankMain>(setup, small_rank_main);
    session.run = [rank](const CaseSpec& spec, int fd) -> std::vector<RankEnding> {
      return {rank->run(spec, fd)};
    };
    return session;
  };
  functions.exchange = exchange_text;
  return functions;
}

CaseSpec small_case(const std::string& backend, int64_t world_size, nlohmann::json options) {
  CaseSpec spec;
  spec.name = "small";
  spec.options = std::move(options);
  spec.parallel.dp = world_size;
  spec.world.backend = enum_of<Backend>(backend);
  spec.world.hang_s = 1.0;
  spec.world.deadline_s = 30;
  return spec;
}

}  // namespace shardproof::sim::world
