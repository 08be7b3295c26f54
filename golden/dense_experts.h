// The sum of experts on one device, written out: every expert computes every token, and its result
// is multiplied by the token's weight for it, which is 0 where it is not chosen.
//
//   x        [T, E]
//   weights  [T, N]         mixture_weights (dense_routes.h); their products with the results of
//                           float16 are in the wider type
//   gate_up  [N, 2F, E]     the rows of the gate, then those of up
//   down     [N, E, F]
//   returns  [T, E]
//   each     where it is given: the result [T, E] of each expert, before the weights
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/experts.h"

namespace shardproof::golden {

at::Tensor dense_experts(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& gate_up,
                         const at::Tensor& down, Activation activation,
                         std::vector<at::Tensor>* each = nullptr);

// The same by the form of gpt_oss, with the activation in the wider type: gate_up [N, E, 2F] with
// columns of gate and up in turn, down [N, F, E], and their biases [N, 2F] and [N, E].
at::Tensor dense_clamped_experts(const at::Tensor& x, const at::Tensor& weights,
                                 const ExpertTensors& experts,
                                 std::vector<at::Tensor>* each = nullptr);

}  // namespace shardproof::golden
