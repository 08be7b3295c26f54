// Where a weight's gradient goes beside autograd: a wide buffer that every backward adds to.
//
//   microbatch 1   sum += g1^T x1     one product into the buffer, in the buffer's dtype;
//   microbatch 2   sum += g2^T x2     no gradient of the weight's dtype is made in between
//
// Who finishes a backward (a hook of the data-parallel buckets) has to know what is in the buffer
// already. `wants_dummy` (Megatron-LM: the weight has a grad_added_to_main_grad mark): the backward
// returns a stand-in, so that hooks fire, and sets `added`. The stand-in is zeros where
// `zero_dummy` (a weight that another path gives a real gradient: both arrive in .grad as one sum),
// else NaN, so that a hook which adds it by mistake is seen (Megatron-LM leaves it uninitialized).
//
// Source: Megatron-LM layers.py, LinearWithGradAccumulationAndAsyncCommunication.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace shardproof {

struct MainGradient {
  // Of the weight's shape: float32, float64 for a float64 weight; or narrower. Undefined between
  // the steps of a trainer.
  at::Tensor sum = {};
  bool wants_dummy = false;
  bool zero_dummy = false;
  bool added = false;  // the last backward added to `sum`: .grad is a stand-in
};

// sum += grad^T x over all leading dims, accumulated in sum's dtype.
void add_weight_gradient(const at::Tensor& sum, const at::Tensor& grad_output,
                         const at::Tensor& input);

// What autograd gets for a gradient that was just added to the buffer: the stand-in, or nothing.
at::Tensor stand_in(const at::Tensor& weight, MainGradient& gradient);

// y = x W^T + b, whose backward adds the gradient of W to `gradient`. `bias` may be undefined; x
// has any number of leading dims. There are no second derivatives (asserted).
at::Tensor accumulating_linear(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, std::shared_ptr<MainGradient> gradient);

// What a hook does after a backward: what is in .grad and not yet in the buffer is added to it,
// .grad is released and `added` is reset.
void finish_main_gradient(const at::Tensor& weight, MainGradient& gradient);

}  // namespace shardproof
