// Outputs that the forward frees and layers that the backward computes again: no bit changes, and
// their memory is free until the backward. Scenarios judge the recomputed values.
#include "train/discarded_outputs.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "tensor/tensor_memory.h"
#include "tests/unit/train/small_run.h"

namespace shardproof::tests {
namespace {

constexpr CheckpointedRegions kRegions[] = {CheckpointedRegions::kNone, CheckpointedRegions::kMlp,
                                            CheckpointedRegions::kLayer};
constexpr DiscardedOutputs kOutputs[] = {DiscardedOutputs::kNone, DiscardedOutputs::kNorms,
                                         DiscardedOutputs::kActivations, DiscardedOutputs::kBoth};

Trial keeping_less(CheckpointedRegions regions, DiscardedOutputs outputs,
                   const Mesh& mesh = Mesh::training({})) {
  return {.mesh = mesh,
          .options = {.micro_batch_size = 2, .checkpointed = regions, .discarded = outputs}};
}

TEST_CASE("training with discarded outputs is the training itself, to the bit",
          "[train][RN-4][MP-5]") {
  const auto [sizes, sequence_parallel] = GENERATE(
      std::pair<AxisSizes, bool>{{}, false}, std::pair<AxisSizes, bool>{{.cp = 2, .tp = 3}, false},
      std::pair<AxisSizes, bool>{{.tp = 3}, true});
  const Mesh mesh = Mesh::training(sizes);
  std::optional<Trained> golden;  // the first keeps everything
  for (const CheckpointedRegions regions : kRegions) {
    for (const DiscardedOutputs outputs : kOutputs) {
      Trial trial = keeping_less(regions, outputs, mesh);
      trial.parallel.tensor.sequence_parallel = sequence_parallel;
      trial.parallel.tensor.spread_checkpoints = mesh.size("tp") > 1 && !sequence_parallel;
      const Trained trained = train(trial);
      if (!golden) golden = trained;
      INFO(mesh.describe() << " sp " << sequence_parallel << ' ' << name_of(regions) << ' '
                           << name_of(outputs));
      CHECK(difference(*golden, trained, 0) == "");
    }
  }
}

TEST_CASE("inputs of checkpoints that are spread over tp are gathered once each", "[train][MP-5]") {
  for (const CheckpointedRegions regions :
       {CheckpointedRegions::kMlp, CheckpointedRegions::kLayer}) {
    Trial trial =
        keeping_less(regions, DiscardedOutputs::kNone, Mesh::training({.dp = 2, .tp = 3}));
    trial.parallel.tensor.spread_checkpoints = true;
    std::vector<CallLog> logs(6);
    for (CallLog& log : logs) trial.listeners.push_back(&log);
    train(trial);
    for (const CallLog& log : logs) {
      const auto kept = std::count_if(log.calls.begin(), log.calls.end(), [](const auto& call) {
        return call.ends_with("checkpoint kept input");
      });
      CHECK(kept == 3 * 2 * 2);  // of 3 layers, 2 microbatches and 2 steps
    }
  }
}

TEST_CASE("sequences cut over tp leave nothing to spread", "[train][MP-5]") {
  Decoder model(small_model(), seeded_weights(small_model(), 3));
  const ParallelStyles styles =
      make_styles({.tensor = {.sequence_parallel = true, .spread_checkpoints = true}});
  CHECK_THROWS_WITH(styles.place(model, Mesh::training({.tp = 3})),
                    Catch::Contains("parallel.tp.spread_checkpoints keeps inputs"));
}

// Names of what the backward computes again.
class Recomputed final : public Probe {
 public:
  bool listens(Phase phase) const override { return phase == Phase::kRecompute; }
  void observe(const Observation& seen) override { names.insert(seen.name); }
  std::set<std::string> names;
};

TEST_CASE("the region's slots are seen again, and no others", "[train][MP-5]") {
  const auto again = [](CheckpointedRegions regions) {
    Recomputed probe;
    Trial trial = keeping_less(regions, DiscardedOutputs::kNone);
    trial.probe = &probe;
    train(trial);
    return probe.names;
  };
  CHECK(again(CheckpointedRegions::kNone).empty());
  std::set<std::string> expected;
  for (const char* layer : {"0", "1", "2"}) {
    for (const char* slot : {"gate_proj", "up_proj", "activation", "down_proj"}) {
      expected.insert(std::string("model.layers.") + layer + ".mlp." + slot + ".output");
    }
  }
  CHECK(again(CheckpointedRegions::kMlp) == expected);
  CHECK(again(CheckpointedRegions::kLayer).size() == 3 * 13);
}

TEST_CASE("a checkpointed layer keeps its input alone", "[train][MP-5]") {
  const auto peak = [](CheckpointedRegions regions) {
    int64_t bytes = 0;
    Trial trial = keeping_less(regions, DiscardedOutputs::kNone);
    trial.config.num_hidden_layers = 6;
    trial.options.micro_batch_size = 0;
    train_with(trial, [&](Trainer& trainer, MeshComm&) {
      const TensorMemory memory;
      trainer.step(small_batch());
      bytes = memory.peak_bytes();
    });
    return bytes;
  };
  const int64_t none = peak(CheckpointedRegions::kNone), mlp = peak(CheckpointedRegions::kMlp),
                layer = peak(CheckpointedRegions::kLayer);
  CHECK(mlp < none);
  CHECK(layer < mlp);
  CHECK(layer < none / 2);
}

// Adds up the memory that the outputs of these slots hold after the forward.
class HeldOutputs final : public Probe {
 public:
  explicit HeldOutputs(std::set<std::string> slots) : slots_(std::move(slots)) {}
  bool listens(Phase phase) const override { return phase == Phase::kForward; }
  void observe(const Observation& seen) override {
    if (slots_.contains(seen.name)) outputs_.push_back(seen.tensor);
    if (seen.name != "logprobs") return;
    for (const at::Tensor& output : outputs_) bytes += output.storage().nbytes();
    outputs_.clear();
  }
  size_t bytes = 0;

 private:
  std::set<std::string> slots_;
  std::vector<at::Tensor> outputs_;
};

TEST_CASE("after the forward the outputs hold no memory", "[train][RN-4]") {
  const auto held = [](DiscardedOutputs outputs, std::set<std::string> slots) {
    HeldOutputs probe(std::move(slots));
    Trial trial = keeping_less(CheckpointedRegions::kNone, outputs);
    trial.probe = &probe;
    trial.steps = 1;
    train(trial);
    return probe.bytes;
  };
  const std::set<std::string> norms = {"model.layers.1.input_layernorm.output",
                                       "model.layers.1.post_attention_layernorm.output"},
                              activations = {"model.layers.1.mlp.activation.output"},
                              others = {"model.norm.output",
                                        "model.layers.1.self_attn.q_proj.output"};
  for (const auto& slots : {norms, activations, others}) {
    CHECK(held(DiscardedOutputs::kNone, slots) > 0);
  }
  CHECK(held(DiscardedOutputs::kNorms, norms) == 0);
  CHECK(held(DiscardedOutputs::kNorms, activations) > 0);
  CHECK(held(DiscardedOutputs::kActivations, activations) == 0);
  CHECK(held(DiscardedOutputs::kActivations, norms) > 0);
  CHECK(held(DiscardedOutputs::kBoth, norms) + held(DiscardedOutputs::kBoth, activations) == 0);
  CHECK(held(DiscardedOutputs::kBoth, others) == held(DiscardedOutputs::kNone, others));
}

}  // namespace
}  // namespace shardproof::tests
