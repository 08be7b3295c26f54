// Recomputed activations: equal to the bit, reported to the probe, and without saved memory.
#include "train/activation_checkpoint.h"

#include <catch2/catch.hpp>
#include <mutex>
#include <set>

#include "tensor/tensor_memory.h"
#include "tests/unit/train/small_run.h"

namespace shardproof::tests {
namespace {

Trial trial_of(CheckpointedRegions regions, const Mesh& mesh = Mesh::training({})) {
  return {.mesh = mesh, .options = {.micro_batch_size = 2, .checkpointed = regions}};
}

TEST_CASE("checkpointed training is the training itself, to the bit", "[train][MP-5]") {
  for (const Mesh& mesh : {Mesh::training({}), Mesh::training({.dp = 2, .cp = 2, .tp = 3})}) {
    const Trained golden = train(trial_of(CheckpointedRegions::kNone, mesh));
    for (const CheckpointedRegions regions :
         {CheckpointedRegions::kMlp, CheckpointedRegions::kLayer}) {
      CHECK(difference(golden, train(trial_of(regions, mesh)), 0) == "");
    }
  }
}

class KeptInputs final : public CallListener {
 public:
  void before_call(const Call& call) override {
    const std::lock_guard lock(mutex_);
    if (call.label.ends_with("checkpoint kept input")) ++gathered;
  }
  void before_wait(const Call&) override {}
  int64_t gathered = 0;

 private:
  std::mutex mutex_;
};

TEST_CASE("inputs of checkpoints that are spread over tp change no bit", "[train][MP-5]") {
  const Mesh mesh = Mesh::training({.dp = 2, .tp = 3});
  const Trained golden = train(trial_of(CheckpointedRegions::kNone, mesh));
  for (const CheckpointedRegions regions :
       {CheckpointedRegions::kMlp, CheckpointedRegions::kLayer}) {
    Trial trial = trial_of(regions, mesh);
    trial.parallel.tensor.spread_checkpoints = true;
    KeptInputs kept;
    trial.listeners = std::vector<CallListener*>(6, &kept);
    CHECK(difference(golden, train(trial), 0) == "");
    // Each rank gathers once for each of 3 layers, 2 microbatches and 2 steps.
    CHECK(kept.gathered == 6 * 3 * 2 * 2);
  }
}

TEST_CASE("sequences cut over tp leave nothing to spread", "[train][MP-5]") {
  Decoder model(small_model(), seeded_weights(small_model(), 3));
  const ParallelStyles styles =
      make_styles({.tensor = {.sequence_parallel = true, .spread_checkpoints = true}});
  CHECK_THROWS_WITH(styles.place(model, Mesh::training({.tp = 3})),
                    Catch::Contains("parallel.tp.spread_checkpoints keeps inputs"));
}

class Recomputed final : public Probe {
 public:
  bool listens(Phase) const override { return true; }
  void observe(const Observation& seen) override {
    const auto key = std::pair{seen.name, seen.microbatch};
    if (seen.phase == Phase::kForward) forward[key] = seen.tensor.detach().clone();
    if (seen.phase == Phase::kBackward) gradients.insert(seen.name);
    if (seen.phase != Phase::kRecompute) return;
    again.insert(seen.name);
    const auto found = forward.find(key);
    if (found == forward.end() || !found->second.equal(seen.tensor)) different.insert(seen.name);
  }
  std::map<std::pair<std::string, int64_t>, at::Tensor> forward;
  std::set<std::string> again, different, gradients;
};

TEST_CASE("the region's slots are seen again, with the same values, and no others",
          "[train][MP-5]") {
  const auto run = [](CheckpointedRegions regions) {
    auto probe = std::make_unique<Recomputed>();
    Trial trial = trial_of(regions);
    trial.probe = probe.get();
    trial.steps = 1;
    train(trial);
    return probe;
  };
  const auto plain = run(CheckpointedRegions::kNone);
  CHECK(plain->again.empty());
  const auto mlp = run(CheckpointedRegions::kMlp);
  std::set<std::string> expected;
  for (const char* layer : {"0", "1", "2"}) {
    for (const char* slot : {"gate_proj", "up_proj", "activation", "down_proj"}) {
      expected.insert(std::string("model.layers.") + layer + ".mlp." + slot + ".output");
    }
  }
  CHECK(mlp->again == expected);
  const auto layer = run(CheckpointedRegions::kLayer);
  CHECK(layer->again.size() == 3 * 13);
  for (const auto* seen : {mlp.get(), layer.get()}) {
    CHECK(seen->different.empty());
    CHECK(seen->gradients == plain->gradients);
  }
}

TEST_CASE("a checkpointed layer keeps its input alone", "[train][MP-5]") {
  const auto peak = [](CheckpointedRegions regions) {
    int64_t bytes = 0;
    Trial trial = trial_of(regions);
    trial.config.num_hidden_layers = 6;
    trial.options.micro_batch_size = 0;
    run_emulated_ranks(trial.mesh, [&](MeshComm& comm, int64_t rank) {
      with_trainer(trial, comm, rank, [&](Trainer& trainer) {
        const TensorMemory memory;
        trainer.step(small_batch());
        bytes = memory.peak_bytes();
      });
    });
    return bytes;
  };
  const int64_t none = peak(CheckpointedRegions::kNone), mlp = peak(CheckpointedRegions::kMlp),
                layer = peak(CheckpointedRegions::kLayer);
  CHECK(mlp < none);
  CHECK(layer < mlp);
  CHECK(layer < none / 2);
}

}  // namespace
}  // namespace shardproof::tests
