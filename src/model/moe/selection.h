// The experts that a router chooses for each token, and their weights (router_rule.h).
//
//   logits   [.., N]  float32 or float64, the product of the router in the wider type; the leading
//                     dims are tokens
//   returns  one entry per token and, for ids and weights, per chosen expert
//
// No communication. The golden of both is golden/dense_routes.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/moe/router_rule.h"

namespace shardproof {

struct Selection {
  at::Tensor ids;  // [.., K] int64, ascending for each token; -1 for a token that is not real
  // [..]: by how much the worst chosen score exceeds the best one that was not chosen, of experts
  // or of groups, whichever is less; infinite where nothing was left out or the token is not real.
  at::Tensor margin;
};

// Among equal scores the lower id is chosen. Throws Error(kRefused): a margin below that of the
// rule. `bias` [N] is undefined for a rule without one; `real`
// [..] bool is false for padding, and undefined where every token is real.
Selection select_experts(const at::Tensor& logits, const at::Tensor& bias, const RouterRule& rule,
                         const at::Tensor& real = {});

// Throws Error(kRefused), "<what> differ by ..", where a margin is nearer to 0 than `least`. A
// margin far below 0 is a wrong choice, which is for a comparison to find.
void refuse_near(const at::Tensor& margins, double least, const char* what);

// [.., K], in the dtype of the logits and differentiable in them: the weights of experts `ids`,
// which need not be the ones that select_experts would choose. The weight of -1 is 0.
at::Tensor route_weights(const at::Tensor& logits, const at::Tensor& ids, const RouterRule& rule);

}  // namespace shardproof
