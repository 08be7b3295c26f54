// Which routes an expert keeps when it takes a limited number of them. A dropped route adds nothing
// to its token; the token's other weights stay as they are.
//
//   C = max(minimum, ceil(T K / N * factor))   T real tokens of a capacity group, K experts per
//                                              token, N experts
//
// Without a capacity nothing is dropped. Sources: NVIDIA/Megatron-LM
// megatron/core/transformer/moe/moe_utils.py, get_capacity and apply_router_token_dropping; GShard,
// arXiv 2006.16668. No communication. Golden: golden/dense_capacity.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/expert_choices.h"
#include "model/moe/router_rule.h"

namespace shardproof {

// C for a capacity group with `tokens` real tokens.
int64_t expert_capacity(int64_t tokens, const RouterRule& router, const CapacityRule& rule);

struct KeptRoutes {
  at::Tensor kept;  // [T, K] bool; false where the id is -1
  // kProbs: the least difference between the last kept and the first dropped weight of an expert in
  // a group; infinite where nothing is dropped.
  double margin;
};

// Throws Error(kRefused): a margin below that of the router's rule.
//
//   ids      [T, K] int64   rows in the order of (sample, position); -1 for padding
//   weights  [T, K]         before any is dropped
//   groups   [T] int64      the capacity group of each token, from 0; unused for padding
KeptRoutes routes_within_capacity(const at::Tensor& ids, const at::Tensor& weights,
                                  const at::Tensor& groups, const RouterRule& router,
                                  const CapacityRule& rule);

}  // namespace shardproof
