#include "model/moe/selection_bias.h"

#include <ATen/ATen.h>

namespace shardproof {

at::Tensor route_counts(const at::Tensor& ids, int64_t num_experts) {
  const at::Tensor flat = ids.reshape({-1});
  return flat.masked_select(flat.ge(0)).bincount({}, num_experts);
}

at::Tensor selection_bias_move(const at::Tensor& counts, const BiasRule& rule) {
  at::Tensor signs = (counts.sum() - counts * counts.size(0)).sign().to(at::kDouble);
  if (rule.centered) signs = signs - signs.mean();
  return signs * rule.rate;
}

}  // namespace shardproof
