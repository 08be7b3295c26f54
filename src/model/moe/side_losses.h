// The losses that a router adds to the main one: balancing, which keeps its experts equally busy,
// and z, which keeps its logits small. Each is a loss of a group of tokens: a microbatch, a
// sequence, or all tokens of a step.
//
//   logits  [T, N]     of the router, without selection bias
//   groups  [T] int64  the group of each token, from 0 to group_count - 1; -1 for padding
//
// A loss of several groups is the mean over those that have a token. A rank that has a part of a
// group's tokens adds the sums below over the group's ranks: counts and tokens have no gradient,
// and each rank's share of `scores` gets the gradient of its own tokens.
//
// Sources: NVIDIA/Megatron-LM megatron/core/transformer/moe/moe_utils.py,
// switch_load_balancing_loss_func, compute_routing_scores_for_aux_loss and z_loss_func, and
// router.py, _apply_global_aux_loss; huggingface/transformers 5.23, load_balancing_loss_func;
// ST-MoE, arXiv 2202.08906. No communication. Golden: golden/dense_side_losses.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/moe/router_rule.h"

namespace shardproof {

struct BalancingSums {
  at::Tensor counts;  // [G, N] int64: routes to each expert, by the K best plain scores
  at::Tensor scores;  // [G, N]: sums of the plain scores, with gradient
  at::Tensor tokens;  // [G] int64
};

// The plain scores are the softmax over N, or the sigmoids divided by their sum: no bias, groups of
// experts, capacity or recorded ids have any effect on them.
BalancingSums balancing_sums(const at::Tensor& logits, const at::Tensor& groups,
                             int64_t group_count, const RouterRule& rule);

// [G]: N * sum_i f_i P_i with f_i = counts / (K tokens) and P_i = scores / tokens; 1 for a router
// that is balanced, 0 for a group without tokens.
at::Tensor balancing_losses(const BalancingSums& sums, const RouterRule& rule);

// As above, with f_i from the counts [N] of `tokens` tokens, which are more than the group's own
// (scope global: all ranks, and the microbatches so far).
at::Tensor balancing_losses_of_counts(const BalancingSums& sums, const at::Tensor& counts,
                                      int64_t tokens, const RouterRule& rule);

// Hugging Face's form, a scalar: f and P are over the tokens of all layers together, all groups in
// one, and f_i is not divided by K.
at::Tensor pooled_balancing_loss(const std::vector<BalancingSums>& layers, const RouterRule& rule);

// [G]: the mean over a group's tokens of the squared logsumexp of the logits.
at::Tensor z_losses(const at::Tensor& logits, const at::Tensor& groups, int64_t group_count);

// Returns `carrier`; its backward also adds `factor` times the gradient of `loss`, a scalar. So a
// side loss needs no path to the main one: the carrier is what the router passes on (its weights,
// or for z its logits). Where no gradients flow it does nothing, so that a recomputed layer adds
// its loss once. Source: NVIDIA/Megatron-LM megatron/core/transformer/moe/moe_utils.py,
// MoEAuxLossAutoScaler, whose factor is a static member; here it is an argument.
at::Tensor with_side_loss(const at::Tensor& carrier, const at::Tensor& loss, double factor);

// The same for a loss that depends on layers to come: the backward adds to the gradient of `value`
// what `gradient`, of its shape, holds by then.
at::Tensor with_later_gradient(const at::Tensor& carrier, const at::Tensor& value,
                               const at::Tensor& gradient);

}  // namespace shardproof
