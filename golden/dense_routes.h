// The routes of a router on one device, written out: for every token and EVERY expert, whether the
// expert is chosen and with which weight. Ranks keep K ids per token and sort; here nothing is
// sorted or gathered.
//
//   logits [T, N], float64 or float32; T tokens, N experts
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "model/moe/router_rule.h"
#include "model/slot.h"

namespace shardproof::golden {

struct DenseRoutes {
  at::Tensor chosen;  // [T, N] bool
  at::Tensor margin;  // [T] float64: worst chosen score less the best one left out
};

// An expert is chosen if fewer than K experts have a better score, or an equal one and a lower id.
DenseRoutes choose_experts(const at::Tensor& logits, const at::Tensor& bias,
                           const RouterRule& rule);

// Throws Error(kRefused) when a margin is below kLeastMargin (base/expert_choices.h); `name` is
// that of the selection. In float64 the probe gets the margins [B, S] as "<name>.margin", beside
// the golden.
void see_margins(const std::string& name, const at::Tensor& margins, at::ScalarType type,
                 const StepContext& context);

// [T, N], differentiable in the logits: 0 where an expert is not chosen.
at::Tensor mixture_weights(const at::Tensor& logits, const at::Tensor& chosen,
                           const RouterRule& rule);

}  // namespace shardproof::golden
