#include "model/experts.h"

#include <ATen/ATen.h>

#include "model/moe/selection.h"
#include "model/precision.h"

namespace shardproof {

at::Tensor Router::forward(at::TensorList inputs, const StepContext&) {
  const at::ScalarType wide = wider_type(inputs[0].scalar_type());
  return at::linear(inputs[0].to(wide), weight->tensor.to(wide),
                    bias ? bias->tensor.to(wide) : at::Tensor());
}

std::vector<ParameterPtr> Router::parameters() const {
  if (!bias) return {weight};
  return {weight, bias};
}

at::Tensor ExpertSelection::forward(at::TensorList inputs, const StepContext& context) {
  at::Tensor real;
  if (context.token_map.defined()) real = context.token_map.ge(0).to(inputs[0].device());
  return select_experts(inputs[0], bias ? bias->tensor : at::Tensor(), rule, real).ids;
}

std::vector<ParameterPtr> ExpertSelection::parameters() const {
  if (!bias) return {};
  return {bias};
}

at::Tensor RouteWeights::forward(at::TensorList inputs, const StepContext&) {
  return route_weights(inputs[0], inputs[1], rule);
}

at::Tensor SharedSum::forward(at::TensorList inputs, const StepContext&) {
  if (inputs.size() < 3) return inputs[0] + inputs[1];
  // In the wider type: the gradient of the gate is a sum over E that may not fit the narrow one.
  const at::ScalarType wide = wider_type(inputs[2].scalar_type());
  const at::Tensor shared = inputs[1].to(wide), gate = inputs[2].to(wide);
  return inputs[0] + (at::sigmoid(gate) * shared).to(inputs[0].scalar_type());
}

namespace {

at::Tensor run_expert_rows(const at::Tensor& x, const ExpertRows& rows,
                           const ExpertTensors& experts, const StepContext& context) {
  const ExpertForm& form = experts.form;
  const bool in_turn = form.columns_in_turn;
  const auto rows_of = [&](const at::Tensor& weight) {
    return in_turn ? weight.transpose(1, 2) : weight;
  };
  const at::Tensor both = grouped_linear(x, rows_of(experts.gate_up), experts.gate_up_bias, rows);
  const std::vector<at::Tensor> gate_and_up =
      in_turn ? both.unflatten(-1, {-1, 2}).unbind(-1) : both.chunk(2, -1);
  const at::Tensor active =
      GatedActivation(form.activation, form.clamp).forward(gate_and_up, context);
  return grouped_linear(active, rows_of(experts.down), experts.down_bias, rows);
}

}  // namespace

at::Tensor run_experts(const at::Tensor& x, const ExpertRows& rows, const ExpertTensors& experts,
                       const StepContext& context) {
  if (experts.rows_multiple == 1) return run_expert_rows(x, rows, experts, context);
  const ExpertRows padded = padded_rows(
      {.routes = at::arange(x.size(0), at::TensorOptions().dtype(at::kLong).device(x.device())),
       .counts = rows.counts,
       .tokens = x.size(0),
       .num_chosen = 1},
      experts.rows_multiple);
  const at::Tensor outputs = run_expert_rows(gather_rows(x, padded), padded, experts, context);
  return outputs.index_select(0, padded.routes.ge(0).nonzero().view({-1}));
}

std::vector<ParameterPtr> Experts::parameters() const {
  if (!gate_up_bias) return {gate_up, down};
  return {gate_up, down, gate_up_bias, down_bias};
}

ExpertTensors Experts::tensors() const {
  ExpertTensors all{gate_up->tensor, down->tensor, form};
  all.rows_multiple = rows_multiple;
  if (gate_up_bias) all.gate_up_bias = gate_up_bias->tensor;
  if (down_bias) all.down_bias = down_bias->tensor;
  return all;
}

at::Tensor Experts::forward(at::TensorList inputs, const StepContext& context) {
  const at::Tensor x = inputs[0].flatten(0, 1);
  const ExpertRows rows = rows_by_expert(inputs[1].flatten(0, 1), gate_up->tensor.size(0));
  const at::Tensor outputs = run_experts(gather_rows(x, rows), rows, tensors(), context);
  return combine_rows(outputs, inputs[2].flatten(0, 1), rows).view_as(inputs[0]);
}

}  // namespace shardproof
