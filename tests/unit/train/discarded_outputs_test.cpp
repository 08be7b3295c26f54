// Outputs that the forward frees: no bit changes, and their memory is free until the backward.
#include "train/discarded_outputs.h"

#include <catch2/catch.hpp>
#include <set>

#include "tests/unit/train/small_run.h"

namespace shardproof::tests {
namespace {

constexpr DiscardedOutputs kAll[] = {DiscardedOutputs::kNorms, DiscardedOutputs::kActivations,
                                     DiscardedOutputs::kBoth};

Trial discarding(DiscardedOutputs outputs, const Mesh& mesh = Mesh::training({})) {
  return {.mesh = mesh, .options = {.micro_batch_size = 2, .discarded = outputs}};
}

TEST_CASE("training with discarded outputs is the training itself, to the bit", "[train][RN-4]") {
  for (const Mesh& mesh : {Mesh::training({}), Mesh::training({.dp = 2, .cp = 2, .tp = 3})}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const CheckpointedRegions regions :
           {CheckpointedRegions::kNone, CheckpointedRegions::kMlp, CheckpointedRegions::kLayer}) {
        const auto trained = [&](DiscardedOutputs outputs) {
          Trial trial = discarding(outputs, mesh);
          trial.parallel.tensor.sequence_parallel = sequence_parallel;
          trial.options.checkpointed = regions;
          return train(trial);
        };
        const Trained golden = trained(DiscardedOutputs::kNone);
        for (const DiscardedOutputs outputs : kAll) {
          INFO(mesh.describe() << " sp " << sequence_parallel << ' ' << name_of(regions) << ' '
                               << name_of(outputs));
          CHECK(difference(golden, trained(outputs), 0) == "");
        }
      }
    }
  }
}

TEST_CASE("behind frozen layers no gradient flows that did not before", "[train][RN-4]") {
  class Gradients final : public Probe {
   public:
    bool listens(Phase phase) const override { return phase == Phase::kBackward; }
    void observe(const Observation& seen) override { names.insert(seen.name); }
    std::set<std::string> names;
  };
  const bool norms_too = GENERATE(false, true);
  const auto seen = [&](DiscardedOutputs outputs) {
    Gradients probe;
    Trial trial = discarding(outputs);
    trial.prepare = [&](Decoder& model, int64_t) {
      model.freeze({"model.embed_tokens.weight", "model.layers.0.*"});
      if (norms_too) model.freeze({"model.layers.1.*norm.weight"});
    };
    trial.probe = &probe;
    trial.steps = 1;
    train(trial);
    return probe.names;
  };
  const std::set<std::string> plain = seen(DiscardedOutputs::kNone);
  CHECK_FALSE(plain.contains("model.layers.0.mlp.down_proj.grad_input"));
  for (const DiscardedOutputs outputs : kAll) CHECK(seen(outputs) == plain);
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
    Trial trial = discarding(outputs);
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
