// Experts on a part of the mesh, beside every other style.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "collective/mappings.h"
#include "parallel/ulysses/style.h"
#include "tests/unit/train/small_run.h"

namespace shardproof::tests {
namespace {

// Experts in 100 lines, whose right values are those of the plain model: expert e of n is the e-th
// part of an MLP's columns, every token goes to every expert, and their outputs are added.
//
// The part `ep` of the mesh holds one expert on each rank: it gathers the tokens of all ranks of
// ep, and the sum of the experts' outputs goes back to the tokens' ranks. The backward so leaves
// the sum over ep with the holder, and the mean is taken over `edp`, the ranks that hold the same
// expert.
class ToyExperts : public ParallelStyle {
 public:
  std::string_view name() const override { return "toy experts"; }
  std::vector<std::string> axes() const override { return {}; }

  void place(Decoder& model, const Mesh& mesh) const override {
    if (mesh.size("ep") == 1) return;
    for (Slot* slot : of_experts(model)) {
      for (const ParameterPtr& weight : slot->layer->parameters()) {
        weight->layout.append(Cut::even(slot->name.ends_with("down_proj") ? 1 : 0, "ep"));
        weight->rule.mean_over = {"edp"};
      }
    }
  }

  void install(Decoder& model, MeshComm& comm) const override {
    if (comm.mesh().size("ep") == 1) return;
    for (Slot* slot : of_experts(model)) {
      slot->layer = std::make_unique<Expert>(std::move(slot->layer), comm.along("ep"), slot->name);
    }
  }

 private:
  class Expert : public Layer {
   public:
    Expert(std::unique_ptr<Layer> plain, Communicator& ep, std::string name)
        : plain_(std::move(plain)), ep_(ep), name_(std::move(name)) {}
    std::vector<ParameterPtr> parameters() const override { return plain_->parameters(); }
    at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
      if (name_.ends_with("down_proj")) {
        return reduce_scatter_with_all_gather_backward(plain_->forward(inputs, context), ep_, 0,
                                                       name_ + " combine");
      }
      return plain_->forward(
          {all_gather_with_reduce_scatter_backward(inputs[0], ep_, 0, name_ + " dispatch")},
          context);
    }

   private:
    std::unique_ptr<Layer> plain_;
    Communicator& ep_;
    std::string name_;
  };

  static std::vector<Slot*> of_experts(Decoder& model) {
    std::vector<Slot*> found;
    for (Slot* slot : model.slots()) {
      if (slot->name.find(".mlp.") != std::string::npos && slot->name.ends_with("_proj")) {
        found.push_back(slot);
      }
    }
    return found;
  }
};

// Experts over `ep` neighbors among the ranks with other tokens.
Mesh expert_mesh(int64_t dp, int64_t cp, int64_t tp, int64_t ep) {
  return Mesh({{"dp", dp}, {"cp", cp}, {"tp", tp}},
              {{"ep", tp, ep}, {"edp", tp * ep, dp * cp / ep}});
}

Trial plain() {
  Trial trial{.mesh = Mesh(), .options = {.micro_batch_size = 1}};
  trial.config.intermediate_size = 24;
  return trial;
}

Trial with_experts(const Mesh& mesh, const ParallelOptions& options = {}) {
  Trial trial = plain();
  trial.mesh = mesh;
  trial.parallel = options;
  trial.styles = ParallelStyles(
      {std::make_shared<TensorParallel>(options.tensor), std::make_shared<ToyExperts>(),
       std::make_shared<ContextParallel>(options.context), std::make_shared<Ulysses>(),
       std::make_shared<DataParallel>(options.data)});
  return trial;
}

TEST_CASE("experts train beside tp, cp and sharded dense weights", "[parallel][style][experts]") {
  const Trained expected = train(plain());
  const ParallelOptions sp{.tensor = {.sequence_parallel = true}}, sharded{.data = fsdp()};
  for (const Mesh& mesh :
       {expert_mesh(2, 1, 1, 2), expert_mesh(4, 1, 1, 2), expert_mesh(2, 2, 1, 2),
        expert_mesh(2, 2, 1, 4), expert_mesh(2, 1, 3, 2)}) {
    INFO(mesh.describe());
    CHECK(difference(expected, train(with_experts(mesh)), 1e-10) == "");
    CHECK(difference(expected, train(with_experts(mesh, sharded)), 1e-10) == "");
  }
  CHECK(difference(expected, train(with_experts(expert_mesh(2, 1, 3, 2), sp)), 1e-10) == "");
}

TEST_CASE("an expert whose mean is that of dense weights is wrong", "[parallel][style][experts]") {
  const Trained expected = train(plain());
  for (const ParallelOptions& options : {ParallelOptions{}, ParallelOptions{.data = fsdp()}}) {
    Trial trial = with_experts(expert_mesh(4, 1, 1, 2), options);
    trial.prepare = [](Decoder& model, int64_t) {
      for (const ParameterPtr& parameter : model.parameters()) {
        if (parameter->rule.mean_over) parameter->rule.mean_over = std::vector<std::string>{};
      }
    };
    CHECK(difference(expected, train(trial), 1e-10) != "");
  }
}

}  // namespace
}  // namespace shardproof::tests
