#include "model/experts.h"

#include <ATen/ATen.h>

#include "model/moe/expert_rows.h"
#include "model/moe/selection.h"
#include "model/precision.h"

namespace shardproof {

at::Tensor Router::forward(at::TensorList inputs, const StepContext&) {
  const at::ScalarType wide = wider_type(inputs[0].scalar_type());
  return at::linear(inputs[0].to(wide), weight->tensor.to(wide));
}

at::Tensor Experts::forward(at::TensorList inputs, const StepContext& context) {
  const at::Tensor x = inputs[0].flatten(0, 1), logits = inputs[1].flatten(0, 1);
  at::Tensor real;
  if (context.token_map.defined()) real = context.token_map.ge(0).flatten().to(x.device());
  const at::Tensor ids = select_experts(logits, /*bias=*/{}, rule, real).ids;
  const at::Tensor weights = route_weights(logits, ids, rule);
  const ExpertRows rows = rows_by_expert(ids, rule.num_experts);
  const at::Tensor both = grouped_linear(gather_rows(x, rows), gate_up->tensor, {}, rows);
  const at::Tensor active = GatedActivation(activation).forward(both.chunk(2, -1), context);
  return combine_rows(grouped_linear(active, down->tensor, {}, rows), weights, rows)
      .view_as(inputs[0]);
}

}  // namespace shardproof
