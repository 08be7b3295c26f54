// Experts in 100 lines, whose right values are those of the plain model: expert e of n is the e-th
// part of an MLP's columns, every token goes to every expert, and their outputs are added.
//
// The part `ep` of the mesh holds one expert on each rank: it gathers the tokens of all ranks of
// ep, and the sum of the experts' outputs goes back to the tokens' ranks. The backward so leaves
// the sum over ep with the holder, and the mean is taken over `edp`, the ranks that hold the same
// expert.
#pragma once

#include <ATen/ATen.h>

#include "collective/mappings.h"
#include "parallel/style/style.h"

namespace shardproof::tests {

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

}  // namespace shardproof::tests
