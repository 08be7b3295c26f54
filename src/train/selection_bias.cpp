#include "train/selection_bias.h"

#include <ATen/ATen.h>

#include "model/layer_slots.h"
#include "model/wrapped_layer.h"
#include "tensor/shard.h"

namespace shardproof {

SelectionBiases::SelectionBiases(Decoder& model, const BiasRule& rule, MeshComm& comm,
                                 at::Device device)
    : options_(rule),
      num_experts_(model.config().router.num_experts),
      comm_(comm),
      device_(device) {
  visit_layer_slots(model, SlotKind::kSelection, [this](int64_t layer, Slot& slot) {
    for (const ParameterPtr& bias : slot.layer->parameters()) layers_[bias->name].push_back(layer);
    wrap_layer(slot,
               [this, layer](Layer& inner, at::TensorList inputs, const StepContext& context) {
                 const at::Tensor ids = inner.forward(inputs, context);
                 count(layer, ids, context);
                 return ids;
               });
  });
}

void SelectionBiases::begin() {
  counts_.clear();
  reduced_.clear();
  counts_now_ = true;
}

void SelectionBiases::count(int64_t layer, const at::Tensor& ids, const StepContext& context) {
  // A recomputed layer counts the same routes again.
  if (counts_now_) counts_[{layer, context.microbatch}] = route_counts(ids, num_experts_);
}

void SelectionBiases::reduce() {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device_);
  std::map<int64_t, at::Tensor> by_layer;
  for (const auto& [bias, layers] : layers_) {
    for (const int64_t layer : layers) by_layer[layer] = at::zeros({num_experts_}, options);
  }
  for (const auto& [key, counts] : counts_) by_layer.at(key.first).add_(counts);
  std::vector<at::Tensor> own;
  for (const auto& [layer, counts] : by_layer) own.push_back(counts);
  const at::Tensor all =
      comm_.world().all_reduce(at::stack(own), ReduceOp::kSum, "routes of the step");
  int64_t next = 0;
  for (const auto& [layer, counts] : by_layer) reduced_[layer] = all[next++];
}

void SelectionBiases::move(const std::vector<ParameterPtr>& parameters,
                           const std::vector<at::Tensor>& masters) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto found = layers_.find(parameters[i]->name);
    if (found == layers_.end()) continue;
    at::Tensor counts = at::zeros({num_experts_}, at::TensorOptions(at::kLong).device(device_));
    for (const int64_t layer : found->second) counts = counts + reduced_.at(layer);
    const at::Tensor all = selection_bias_move(counts, options_);
    masters[i].add_(cut(all, parameters[i]->layout, comm_.mesh(), comm_.rank()));
  }
}

}  // namespace shardproof
