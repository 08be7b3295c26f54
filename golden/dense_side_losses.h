// The side losses and the bias update of a router, written out from their definitions, group by
// group.
//
//   logits [T, N]; groups: T numbers, less than 0 for padding
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/moe/router_rule.h"
#include "model/moe/selection_bias.h"

namespace shardproof::golden {

// Scalars, differentiable in the logits: the mean over the groups that occur.
at::Tensor dense_balancing_loss(const at::Tensor& logits, const std::vector<int64_t>& groups,
                                const RouterRule& rule);
// The same, with the share of routes of each expert over all tokens whose moment is not after that
// of the group; `moments`: T numbers, less than 0 for padding, equal within a group.
at::Tensor dense_balancing_loss_so_far(const at::Tensor& logits, const std::vector<int64_t>& groups,
                                       const std::vector<int64_t>& moments, const RouterRule& rule);
// The scores [T, N] whose means a balancing loss has; their sum over N is 1.
at::Tensor dense_scores(const at::Tensor& logits, const RouterRule& rule);
at::Tensor dense_z_loss(const at::Tensor& logits, const std::vector<int64_t>& groups);

// Hugging Face's form over the tokens of all layers whose group is not less than 0.
at::Tensor dense_pooled_loss(const std::vector<at::Tensor>& logits,
                             const std::vector<int64_t>& groups, const RouterRule& rule);

std::vector<double> dense_bias_update(std::vector<double> bias, const std::vector<int64_t>& counts,
                                      const BiasRule& rule);

}  // namespace shardproof::golden
