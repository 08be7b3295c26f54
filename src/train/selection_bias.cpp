#include "train/selection_bias.h"

#include <ATen/ATen.h>

#include "model/layer_slots.h"
#include "model/moe/selection.h"
#include "model/wrapped_layer.h"
#include "train/router_tokens.h"

namespace shardproof {
namespace {

class BiasedSelection : public WrappedLayer {
 public:
  BiasedSelection(std::unique_ptr<Layer> inner, int64_t number, SelectionBiases& biases)
      : WrappedLayer(std::move(inner)), number_(number), biases_(biases) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    return biases_.select(number_, inputs[0], context);
  }

 private:
  int64_t number_;
  SelectionBiases& biases_;
};

}  // namespace

SelectionBiases::SelectionBiases(Decoder& model, const BiasRule& rule, MeshComm& comm,
                                 at::ScalarType wide, at::Device device)
    : options_(rule), rule_(model.config().router), comm_(comm) {
  rule_.selection_bias = true;
  check_router_rule(rule_);
  const at::Tensor zeros =
      at::zeros({rule_.num_experts}, at::TensorOptions().dtype(wide).device(device));
  visit_layer_slots(model, SlotKind::kSelection, [&](int64_t layer, Slot& slot) {
    biases_[layer] = zeros;
    slot.layer = std::make_unique<BiasedSelection>(std::move(slot.layer), layer, *this);
  });
}

void SelectionBiases::begin() {
  counts_.clear();
  counts_now_ = true;
}

at::Tensor SelectionBiases::select(int64_t layer, const at::Tensor& logits,
                                   const StepContext& context) {
  const at::Tensor real =
      tokens_of_router(context.token_map, logits.size(1), comm_).ge(0).to(logits.device());
  const at::Tensor ids = select_experts(logits, biases_.at(layer), rule_, real).ids;
  // A recomputed layer counts the same routes again.
  if (counts_now_) {
    counts_[{layer, context.microbatch}] = route_counts(ids, rule_.num_experts);
  }
  return ids;
}

void SelectionBiases::update() {
  std::map<int64_t, at::Tensor> by_layer;
  for (const auto& [layer, bias] : biases_) {
    by_layer[layer] = at::zeros({rule_.num_experts}, bias.options().dtype(at::kLong));
  }
  for (const auto& [key, counts] : counts_) by_layer.at(key.first).add_(counts);
  std::vector<at::Tensor> own;
  for (const auto& [layer, counts] : by_layer) own.push_back(counts);
  const at::Tensor all =
      comm_.world().all_reduce(at::stack(own), ReduceOp::kSum, "routes of the step");
  int64_t next = 0;
  for (auto& [layer, bias] : biases_) bias = updated_selection_bias(bias, all[next++], options_);
}

}  // namespace shardproof
