// A throw-away style with an axis of its own. In src/parallel it would be a folder, a line of the
// registry, and rows of tables (docs/adding/style.md).
//
// Ranks of the axis xp work on different samples. The weight of each layer's norms is parked on one
// of them (layer i on i % size) and exists nowhere else: a forward sums it over xp with the zeros
// of the others, and a backward sums its gradient, which is then no mean over xp. All forwards of a
// step come before all backwards.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>

#include "collective/mappings.h"
#include "parallel/style/style.h"

namespace shardproof::tests {

class ParkedNorm : public Layer {
 public:
  ParkedNorm(const RmsNorm& plain, Communicator& xp, std::string label)
      : weight_(plain.weight),
        eps_(plain.eps),
        unit_offset_(plain.unit_offset),
        xp_(xp),
        label_(std::move(label)) {}

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    const int64_t absent = weight_->global_shape[0] - weight_->tensor.numel();
    const at::Tensor own = at::constant_pad_nd(weight_->tensor, {0, absent});
    const at::Tensor whole = copy_with_all_reduce_backward(
        all_reduce_with_identity_backward(own, xp_, label_ + " whole"), xp_, label_ + " grad");
    return RmsNorm(std::make_shared<Parameter>(Parameter{.name = weight_->name, .tensor = whole}),
                   eps_, unit_offset_)
        .forward(inputs, context);
  }
  std::vector<ParameterPtr> parameters() const override { return {weight_}; }

 private:
  ParameterPtr weight_;
  double eps_;
  bool unit_offset_;
  Communicator& xp_;
  std::string label_;
};

class ParkedNorms : public ParallelStyle {
 public:
  std::string_view name() const override { return "parked norms"; }
  std::vector<std::string> axes() const override { return {"xp"}; }

  void place(Decoder& model, const Mesh& mesh) const override {
    const int64_t size = mesh.size("xp");
    if (size == 1) return;
    for (Slot* slot : norms(model)) {
      Parameter& weight = *dynamic_cast<RmsNorm&>(*slot->layer).weight;
      weight.layout.append(Cut::held_by("xp", {layer_of(*slot) % size}));
      weight.rule.mean_over = {"dp", "cp", "ulysses"};
    }
  }

  void install(Decoder& model, MeshComm& comm) const override {
    if (comm.mesh().size("xp") == 1) return;
    for (Slot* slot : norms(model)) {
      slot->layer = std::make_unique<ParkedNorm>(dynamic_cast<RmsNorm&>(*slot->layer),
                                                 comm.along("xp"), slot->name);
    }
  }

  void cut_tokens(TokenCuts& cuts, const Mesh&) const override { cuts.sample_axes.push_back("xp"); }

  std::optional<std::vector<Action>> schedule(const Mesh&, int64_t, int64_t microbatches,
                                              bool backward) const override {
    std::vector<Action> actions =
        backward ? one_at_a_time(microbatches) : forwards_only(microbatches);
    std::stable_partition(actions.begin(), actions.end(), [](const Action& action) {
      return action.kind == Action::Kind::kForward;
    });
    return actions;
  }

 private:
  static std::vector<Slot*> norms(Decoder& model) {
    std::vector<Slot*> found;
    for (Slot* slot : model.slots()) {
      if (slot->name.ends_with("_layernorm")) found.push_back(slot);
    }
    return found;
  }
  static int64_t layer_of(const Slot& slot) { return std::stoll(slot.name.substr(13)); }
};

}  // namespace shardproof::tests
