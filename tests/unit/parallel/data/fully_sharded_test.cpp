// Training with sharded parameters equals training on one rank, for every way to shard.
#include "parallel/data/fully_sharded.h"

#include <catch2/catch.hpp>
#include <set>

#include "tensor/tensor_memory.h"
#include "tests/unit/train/small_run.h"

namespace shardproof::tests {
namespace {

const Trained& on_one_rank() {
  static const Trained golden = train({.mesh = Mesh::training({})});
  return golden;
}

TEST_CASE("sharded training is the training of one rank, on every mesh and in every mode",
          "[fsdp][MP-5]") {
  const auto same = [](Trial trial) {
    INFO(trial.mesh.describe());
    CHECK(difference(on_one_rank(), train(trial), 1e-9) == "");
  };
  SECTION("over dp, cp, ulysses and their product, also with more ranks than rows") {
    for (const Mesh& mesh : {Mesh::training({.dp = 2}), Mesh::training({.dp = 5}),
                             Mesh::training({.cp = 3}), Mesh::training({.ulysses = 3}),
                             Mesh::training({.dp = 2, .cp = 2}), Mesh::training({.dp = 11})}) {
      same({.mesh = mesh, .parallel = {.data = fsdp()}});
    }
  }
  SECTION("on what tensor parallelism left") {
    for (const bool sequence_parallel : {false, true}) {
      same({.mesh = Mesh::training({.dp = 2, .cp = 2, .tp = 3}),
            .parallel = {.tensor = {.sequence_parallel = sequence_parallel}, .data = fsdp()}});
      same({.mesh = Mesh::training({.dp = 3, .tp = 6}),  // two tp ranks share a kv head
            .parallel = {.tensor = {.sequence_parallel = sequence_parallel}, .data = fsdp()}});
    }
  }
  SECTION("hybrid: copies along dp") {
    for (const int64_t copies : {1, 2, 4}) {
      same({.mesh = Mesh::training({.dp = 4, .tp = 3}),
            .parallel = {.data = {.kind = DataParallelKind::kHybrid, .replicate_size = copies}}});
    }
    same({.mesh = Mesh::training({.dp = 4, .cp = 2}),
          .parallel = {.data = {.kind = DataParallelKind::kHybrid, .replicate_size = 2}}});
  }
  SECTION("without freeing after forward, without prefetch, reducing once or at each microbatch") {
    for (const int mode : {0, 1, 2, 3, 4, 5, 6, 7}) {
      FsdpOptions options = fsdp();
      options.reshard_after_forward = mode & 1;
      options.prefetch = mode & 2;
      options.reduce_each_microbatch = mode & 4;
      same({.options = {.micro_batch_size = 1}, .parallel = {.data = options}});
    }
  }
  SECTION("with activation checkpointing") {
    for (const CheckpointedRegions regions :
         {CheckpointedRegions::kMlp, CheckpointedRegions::kLayer}) {
      for (const bool reshard : {true, false}) {
        FsdpOptions options = fsdp();
        options.reshard_after_forward = reshard;
        same({.mesh = Mesh::training({.dp = 2, .cp = 2}),
              .options = {.micro_batch_size = 2, .checkpointed = regions},
              .parallel = {.data = options}});
      }
    }
  }
}

TEST_CASE("tied weights are one leaf of the root, reduced once with both uses", "[fsdp][MP-5]") {
  Trial trial{.parallel = {.data = fsdp()}};
  trial.config.tie_word_embeddings = true;
  Trial golden = trial;
  golden.mesh = Mesh::training({});
  CHECK(difference(train(golden), train(trial), 1e-9) == "");
}

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
  const Trained replicated = train({.mesh = Mesh::training({.dp = 2}), .dtype = at::kBFloat16});
  CHECK(difference(replicated, trained, 1e-2) == "");
}

TEST_CASE("the shards put together are the weights, to the bit", "[fsdp][MP-5]") {
  const auto weights = seeded_weights(small_model(), 3);
  for (const Mesh& mesh :
       {Mesh::training({.dp = 4}), Mesh::training({.dp = 2, .cp = 2, .tp = 3})}) {
    const Trained state = train({.mesh = mesh, .parallel = {.data = fsdp()}, .steps = 0});
    REQUIRE(state.parameters.size() == weights->size());
    for (const auto& [name, tensor] : *weights) CHECK(state.parameters.at(name).equal(tensor));
  }
}

int64_t shard_bytes(const Trainer& trainer, const Mesh& mesh, int64_t rank) {
  int64_t bytes = 0;
  for (const ParameterPtr& parameter : trainer.parameters()) {
    bytes += 8 * c10::multiply_integers(
                     parameter->layout.local_shape(parameter->global_shape, mesh, rank));
  }
  return bytes;
}

TEST_CASE("a rank holds its shards of parameters, gradients and optimizer, to the byte",
          "[fsdp][MP-5]") {
  const Trial trial{.mesh = Mesh::training({.dp = 5, .tp = 3}), .parallel = {.data = fsdp()}};
  std::vector<std::vector<int64_t>> found(15), allocated(15);
  std::vector<int64_t> predicted(15);
  run_emulated_ranks(trial.mesh, [&](MeshComm& comm, int64_t rank) {
    const auto at_rank = static_cast<size_t>(rank);
    const TensorMemory memory;
    with_trainer(trial, comm, rank, [&](Trainer& trainer) {
      predicted[at_rank] = shard_bytes(trainer, trial.mesh, rank);
      allocated[at_rank].push_back(memory.current_bytes());
      trainer.step(small_batch());
      allocated[at_rank].push_back(memory.current_bytes());
      const HeldBytes held = trainer.held_bytes();
      found[at_rank] = {held.parameters, held.gradients, held.optimizer};
    });
  });
  const auto weights = seeded_weights(small_model(), 3);
  for (size_t rank = 0; rank < 15; ++rank) {
    const int64_t bytes = predicted[rank];
    CHECK(found[rank] == std::vector<int64_t>{bytes, bytes, 2 * bytes});
    // The allocator handed out the shards, the rope's frequencies, and the full weights from which
    // the model was made.
    int64_t others = 8 * small_model().head_dim / 2;
    for (const auto& [name, full] : *weights) others += static_cast<int64_t>(full.nbytes());
    CHECK(allocated[rank][0] == bytes + others);
    // After a step there is also the optimizer's state, and the trainer's token maps of the batch.
    CHECK(allocated[rank][1] >= 3 * bytes + others);
    CHECK(allocated[rank][1] < 3 * bytes + others + 4096);
  }
}

// Records which layers have memory while a slot computes.
class WholeLayers final : public Probe {
 public:
  explicit WholeLayers(const Trainer& trainer) : trainer_(trainer) {}
  bool listens(Phase) const override { return true; }
  void observe(const Observation& observation) override {
    if (observation.phase == Phase::kStep || !observation.name.starts_with("model.layers.")) return;
    std::set<char> whole;
    for (const ParameterPtr& parameter : trainer_.parameters()) {
      if (parameter->name.starts_with("model.layers.") &&
          parameter->tensor.storage().nbytes() > 0) {
        whole.insert(parameter->name[13]);
      }
    }
    const char layer = observation.name[13];
    const bool alone = whole == std::set<char>{layer};
    if (!alone) others_[observation.phase].insert(observation.name);
    if (whole.count(layer) == 0) ++missing;
    ++seen;
  }
  const std::set<std::string>& others(Phase phase) { return others_[phase]; }
  int64_t missing = 0, seen = 0;

 private:
  const Trainer& trainer_;
  std::map<Phase, std::set<std::string>> others_;
};

// Passes observations on to a probe that is set later.
class LateProbe final : public Probe {
 public:
  bool listens(Phase phase) const override { return next && next->listens(phase); }
  void observe(const Observation& observation) override { next->observe(observation); }
  Probe* next = nullptr;
};

TEST_CASE("while a layer is at work no other has memory; the root keeps its own", "[fsdp][MP-5]") {
  for (const bool reshard : {true, false}) {
    std::vector<std::string> problems(2);
    run_emulated_ranks(Mesh::training({.dp = 2}), [&](MeshComm& comm, int64_t rank) {
      LateProbe late;
      FsdpOptions options = fsdp();
      options.reshard_after_forward = reshard;
      const Trial trial{.mesh = Mesh::training({.dp = 2}),
                        .options = {.micro_batch_size = 2},
                        .parallel = {.data = options},
                        .probe = &late};
      std::string& problem = problems[static_cast<size_t>(rank)];
      with_trainer(trial, comm, rank, [&](Trainer& trainer) {
        WholeLayers probe(trainer);
        late.next = &probe;
        trainer.step(small_batch());
        if (probe.seen == 0 || probe.missing != 0) problem = "a layer worked without memory";
        if (reshard && !probe.others(Phase::kForward).empty()) problem = "forward";
        if (reshard && !probe.others(Phase::kBackward).empty()) problem = "backward";
        if (!reshard && probe.others(Phase::kForward).empty()) problem = "it was freed";
        for (const ParameterPtr& parameter : trainer.parameters()) {
          if (parameter->tensor.storage().nbytes() != 0) problem = "not freed after the step";
        }
      });
    });
    CHECK(problems == std::vector<std::string>(2));
  }
}

TEST_CASE("each microbatch gathers a layer twice and reduces it once; scoring gathers it once",
          "[fsdp][MP-5][PW-4]") {
  const auto count = [](const CallLog& log, const std::string& call) {
    return std::count(log.calls.begin(), log.calls.end(), call);
  };
  const auto run = [&](FsdpOptions options, bool scores) {
    std::vector<CallLog> logs(2);
    const Trial trial{.mesh = Mesh::training({.dp = 2}),
                      .options = {.micro_batch_size = 1},
                      .parallel = {.data = options},
                      .listeners = {&logs[0], &logs[1]}};
    rethrow_first(try_emulated_ranks(
        trial.mesh,
        [&](MeshComm& comm, int64_t rank) {
          with_trainer(trial, comm, rank, [&](Trainer& trainer) {
            if (scores) {
              trainer.score(small_batch());
            } else {
              trainer.step(small_batch());
            }
          });
        },
        trial.listeners));
    CHECK(logs[0].calls == logs[1].calls);
    return logs[0];
  };
  const std::string gather = "all_gather model.layers.1 gather";
  const std::string reduce = "reduce_scatter model.layers.1 reduce";
  FsdpOptions options = fsdp();
  CHECK(count(run(options, false), gather) == 2 * 3);  // three microbatches on two ranks
  CHECK(count(run(options, false), reduce) == 3);
  CHECK(count(run(options, false), "all_gather model gather") == 3);
  options.reduce_each_microbatch = false;
  CHECK(count(run(options, false), reduce) == 1);
  options.reshard_after_forward = false;
  CHECK(count(run(options, false), gather) == 3);
  CHECK(count(run(options, true), gather) == 1);
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
  std::vector<std::string> problems(2);
  run_emulated_ranks(Mesh::training({.dp = 2}), [&](MeshComm& comm, int64_t rank) {
    const Trial trial{
        .mesh = Mesh::training({.dp = 2}), .parallel = {.data = fsdp()}, .probe = &thrower};
    std::string& problem = problems[static_cast<size_t>(rank)];
    with_trainer(trial, comm, rank, [&](Trainer& trainer) {
      problem = "nothing was thrown";
      try {
        trainer.score(small_batch());
      } catch (const std::runtime_error&) {
        problem = "";
      }
      for (const ParameterPtr& parameter : trainer.parameters()) {
        if (parameter->tensor.storage().nbytes() != 0) problem = parameter->name + " is whole";
      }
    });
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
