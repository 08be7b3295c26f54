#include "golden/router_bias.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "golden/dense_side_losses.h"
#include "model/layer_slots.h"
#include "model/wrapped_layer.h"

namespace shardproof::golden {

RouterBiases::RouterBiases(const sim::CaseSpec& spec, Decoder& model)
    : rule_(spec.selection_bias), ids_(std::make_shared<RoutesOfBiases>()) {
  if (rule_.rate == 0) return;
  if (spec.precision != Precision::kFloat64) {
    throw_refused(fmt::format("a selection bias moves by the routes of each step, but in {} tokens "
                              "have the experts that one device chose in float64",
                              name_of(spec.precision)),
                  "leave out run.experts.bias, or set precision: float64");
  }
  visit_layer_slots(model, SlotKind::kSelection, [this](int64_t layer, Slot& slot) {
    wrap_layer(slot, [routes = ids_, layer](Layer& inner, at::TensorList inputs,
                                            const StepContext& context) {
      const at::Tensor ids = inner.forward(inputs, context);
      for (const ParameterPtr& bias : inner.parameters()) (*routes)[bias->name][layer] = ids;
      return ids;
    });
  });
}

std::map<std::string, at::Tensor> RouterBiases::update(
    const Batch& batch, const std::vector<ParameterPtr>& parameters,
    const std::vector<at::Tensor>& masters) const {
  std::map<std::string, at::Tensor> moves;
  if (rule_.rate == 0) return moves;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto found = ids_->find(parameters[i]->name);
    if (found == ids_->end()) continue;
    const at::Tensor& bias = masters[i];
    std::vector<int64_t> counts(static_cast<size_t>(bias.size(0)));
    for (const auto& [layer, chosen] : found->second) {
      for (int64_t sample = 0; sample < batch.size(); ++sample) {
        const int64_t length = batch.input_lengths[sample].item<int64_t>();
        const at::Tensor ids = chosen[sample].narrow(0, 0, length).contiguous();
        for (int64_t at = 0; at < ids.numel(); ++at) {
          ++counts[static_cast<size_t>(ids.data_ptr<int64_t>()[at])];
        }
      }
    }
    const at::Tensor before = bias.clone();
    const auto* first = bias.data_ptr<double>();
    bias.copy_(
        at::tensor(dense_bias_update({first, first + bias.size(0)}, counts, rule_), at::kDouble));
    moves[parameters[i]->name] = bias - before;
  }
  return moves;
}

}  // namespace shardproof::golden
