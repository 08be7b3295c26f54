// What ranks with sharded parameters hold and send. Scenarios (fsdp) show that they train as one
// rank does, and how often they gather and reduce.
#include "parallel/data/fully_sharded.h"

#include <catch2/catch.hpp>
#include <set>

#include "parallel/data/flat_shards.h"
#include "tensor/tensor_memory.h"
#include "tests/unit/train/small_run.h"

namespace shardproof::tests {
namespace {

TEST_CASE("bfloat16 parameters have float32 shards and are reduced in float32", "[fsdp][MP-5]") {
  class Dtypes final : public CallListener {
   public:
    void before_call(const Call& call) override {
      if (call.label.ends_with(" gather")) gathered.insert(call.dtype);
      if (call.label.ends_with(" reduce")) reduced.insert(call.dtype);
    }
    std::set<std::string> gathered, reduced;
  };
  std::vector<Dtypes> seen(2);
  const Trained trained = train({.mesh = Mesh::training({.dp = 2}),
                                 .parallel = {.data = fsdp()},
                                 .dtype = at::kBFloat16,
                                 .listeners = {&seen[0], &seen[1]}});
  for (const Dtypes& rank : seen) {
    CHECK(rank.gathered == std::set<std::string>{"bfloat16"});
    CHECK(rank.reduced == std::set<std::string>{"float32"});
  }
  CHECK(trained.parameters.begin()->second.scalar_type() == at::kFloat);
}

TEST_CASE("a gradient that the backward did not leave is reduced as zeros", "[fsdp][MP-5]") {
  const FlatShards flat({{3}, {2, 2}}, 2);
  const at::Tensor half = at::tensor({1.5, 2.5, -3.0}).to(at::kBFloat16);
  const at::Tensor packed = flat.pack_whole({half, at::Tensor()}, at::kFloat);
  CHECK(packed.equal(at::tensor({1.5F, 2.5F, 0.F, 0.F, -3.F, 0.F, 0.F})));
}

TEST_CASE("a rank holds its shards of parameters, gradients and optimizer, to the byte",
          "[fsdp][MP-5]") {
  struct Held {
    int64_t shards = 0, at_start = 0, after_step = 0;
    HeldBytes found;
  };
  const Trial trial{.mesh = Mesh::training({.dp = 5, .tp = 3}), .parallel = {.data = fsdp()}};
  std::vector<Held> ranks(15);
  run_emulated_ranks(trial.mesh, [&](MeshComm& comm, int64_t rank) {
    const TensorMemory memory;
    with_trainer(trial, comm, rank, [&](Trainer& trainer) {
      Held& held = ranks[static_cast<size_t>(rank)];
      for (const ParameterPtr& parameter : trainer.parameters()) {
        held.shards += 8 * c10::multiply_integers(parameter->layout.local_shape(
                               parameter->global_shape, trial.mesh, rank));
      }
      held.at_start = memory.current_bytes();
      trainer.step(small_batch());
      held.after_step = memory.current_bytes();
      held.found = trainer.held_bytes();
    });
  });
  // The allocator also handed out the rope's frequencies and the full weights from which the model
  // was made.
  int64_t others = 8 * small_model().head_dim / 2;
  const auto weights = seeded_weights(small_model(), 3);
  for (const auto& [name, full] : *weights) {
    others += static_cast<int64_t>(full.nbytes());
  }
  for (const Held& held : ranks) {
    CHECK(held.found.parameters == held.shards);
    CHECK(held.found.gradients == held.shards);
    CHECK(held.found.optimizer == 2 * held.shards);
    CHECK(held.at_start == held.shards + others);
    // After a step there is also the optimizer's state, and the trainer's token maps of the batch.
    CHECK(held.after_step >= 3 * held.shards + others);
    CHECK(held.after_step < 3 * held.shards + others + 4096);
  }
}

// "" if no parameter has memory, else the name of one that has.
std::string whole_parameter(const Trainer& trainer) {
  for (const ParameterPtr& parameter : trainer.parameters()) {
    if (parameter->tensor.storage().nbytes() != 0) return parameter->name + " is whole";
  }
  return "";
}

// Calls `work` on both ranks of dp=2 with a trainer of sharded parameters.
void on_two_ranks(const FsdpOptions& options, const std::function<Probe*(int64_t)>& probe_of,
                  const std::function<void(Trainer&, int64_t)>& work) {
  run_emulated_ranks(Mesh::training({.dp = 2}), [&](MeshComm& comm, int64_t rank) {
    const Trial trial{.mesh = Mesh::training({.dp = 2}),
                      .options = {.micro_batch_size = 2},
                      .parallel = {.data = options},
                      .probe = probe_of(rank)};
    with_trainer(trial, comm, rank, [&](Trainer& trainer) { work(trainer, rank); });
  });
}

// Records which layers have memory while a slot computes.
class WholeLayers final : public Probe {
 public:
  bool listens(Phase) const override { return true; }
  void observe(const Observation& observation) override {
    if (observation.phase == Phase::kStep || !observation.name.starts_with("model.layers.")) return;
    std::set<char> whole;
    for (const ParameterPtr& parameter : trainer->parameters()) {
      if (parameter->name.starts_with("model.layers.") &&
          parameter->tensor.storage().nbytes() > 0) {
        whole.insert(parameter->name[13]);
      }
    }
    const char layer = observation.name[13];
    if (whole.count(layer) == 0) ++missing;
    if (whole != std::set<char>{layer}) ++with_others[observation.phase];
    ++seen;
  }
  const Trainer* trainer = nullptr;  // set before the step
  int64_t missing = 0, seen = 0;
  std::map<Phase, int64_t> with_others;
};

TEST_CASE("while a layer is at work no other has memory; the root keeps its own", "[fsdp][MP-5]") {
  for (const bool reshard : {true, false}) {
    FsdpOptions options = fsdp();
    options.reshard_after_forward = reshard;
    std::vector<WholeLayers> probes(2);
    std::vector<std::string> left(2);
    on_two_ranks(
        options, [&](int64_t rank) { return &probes[static_cast<size_t>(rank)]; },
        [&](Trainer& trainer, int64_t rank) {
          probes[static_cast<size_t>(rank)].trainer = &trainer;
          trainer.step(small_batch());
          left[static_cast<size_t>(rank)] = whole_parameter(trainer);
        });
    CHECK(left == std::vector<std::string>(2));
    for (WholeLayers& probe : probes) {
      CHECK(probe.seen > 0);
      CHECK(probe.missing == 0);
      CHECK((probe.with_others[Phase::kForward] > 0) == !reshard);
      if (reshard) CHECK(probe.with_others[Phase::kBackward] == 0);
    }
  }
}

TEST_CASE("a scoring pass that throws frees what it gathered", "[fsdp][PW-4]") {
  class Thrower final : public Probe {
   public:
    bool listens(Phase) const override { return true; }
    void observe(const Observation& observation) override {
      if (observation.name == "model.layers.1.mlp.down_proj.output") throw std::runtime_error("no");
    }
  };
  Thrower thrower;
  std::vector<std::string> problems(2, "nothing was thrown");
  on_two_ranks(
      fsdp(), [&](int64_t) { return &thrower; },
      [&](Trainer& trainer, int64_t rank) {
        try {
          trainer.score(small_batch());
        } catch (const std::runtime_error&) {
          problems[static_cast<size_t>(rank)] = whole_parameter(trainer);
        }
      });
  CHECK(problems == std::vector<std::string>(2));
}

TEST_CASE("copies that do not divide dp are refused", "[fsdp][MP-5]") {
  const FsdpOptions options{.kind = DataParallelKind::kHybrid, .replicate_size = 2};
  const std::vector<std::string> tokens = {"dp", "cp", "ulysses"};
  CHECK_THROWS_WITH(shard_axes(Mesh::training({.dp = 3, .cp = 2}), tokens, options),
                    Catch::Contains("replicate_size=2 does not divide data_parallel_size=3"));
  const ShardAxes axes = shard_axes(Mesh::training({.dp = 4, .cp = 2, .tp = 2}), tokens, options);
  CHECK(axes.shard == "dp+cp%4");
  CHECK(axes.replicate == "dp+cp//4");
  CHECK(shard_axes(Mesh::training({.tp = 4}), tokens, fsdp()).shard == "");
  CHECK_THROWS_WITH(shard_axes(Mesh::training({.tp = 4}), tokens, options),
                    Catch::Contains("replicate_size=2 does not divide data_parallel_size=1"));
  CHECK(shard_axes(Mesh::training({.tp = 4}), tokens, {.kind = DataParallelKind::kHybrid}).shard ==
        "");
}

}  // namespace
}  // namespace shardproof::tests
