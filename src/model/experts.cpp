#include "model/experts.h"

#include <ATen/ATen.h>

#include "model/moe/selection.h"
#include "model/precision.h"

namespace shardproof {

at::Tensor Router::forward(at::TensorList inputs, const StepContext&) {
  const at::ScalarType wide = wider_type(inputs[0].scalar_type());
  return at::linear(inputs[0].to(wide), weight->tensor.to(wide));
}

at::Tensor ExpertSelection::forward(at::TensorList inputs, const StepContext& context) {
  at::Tensor real;
  if (context.token_map.defined()) real = context.token_map.ge(0).to(inputs[0].device());
  return select_experts(inputs[0], /*bias=*/{}, rule, real).ids;
}

at::Tensor RouteWeights::forward(at::TensorList inputs, const StepContext&) {
  return route_weights(inputs[0], inputs[1], rule);
}

at::Tensor run_experts(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& gate_up,
                       const at::Tensor& down, Activation activation, const StepContext& context) {
  const at::Tensor both = grouped_linear(x, gate_up, {}, rows);
  const at::Tensor active = GatedActivation(activation).forward(both.chunk(2, -1), context);
  return grouped_linear(active, down, {}, rows);
}

at::Tensor Experts::forward(at::TensorList inputs, const StepContext& context) {
  const at::Tensor x = inputs[0].flatten(0, 1);
  const ExpertRows rows = rows_by_expert(inputs[1].flatten(0, 1), gate_up->tensor.size(0));
  const at::Tensor outputs =
      run_experts(gather_rows(x, rows), rows, gate_up->tensor, down->tensor, activation, context);
  return combine_rows(outputs, inputs[2].flatten(0, 1), rows).view_as(inputs[0]);
}

}  // namespace shardproof
