// The product of a tensor-parallel linear layer; its backward communicates while it computes.
//
//   forward    y = x W^T + b                         SP: x [.., S_tp, ..] is all-gathered first
//   backward   1 SP: all_gather of x starts          (only this rank's part of x is saved)
//              2 grad_x = g W                        during the all_gather
//              3 all_reduce of grad_x starts         SP: reduce_scatter to [.., S_tp, ..]
//              4 grad_W = g^T x                      during the reduction
//              5 grad_b = sum of g over all leading dims
//              6 grad_x is waited for
//
// grad_W is added to the weight's main gradient if it has one, is deferred if that is configured,
// and else is returned to autograd. Calls: "<label> forward", "<label> backward", "<label>
// regather". A split backward makes the all_gather of step 1 when it computes grad_W.
//
// Legend: x [.., E], W [F, E], y [.., F], g the gradient of y; any number of leading dims, any
// strides. E in, F out, S sequence. Dtypes of x, W and b agree.
//
// Source: Megatron-LM layers.py, LinearWithGradAccumulationAndAsyncCommunication and
// LinearWithFrozenWeight. They sum the bias gradient of a deferred product over the first dim only,
// and give a trainable bias beside a frozen weight no gradient; here both gradients are complete.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "collective/gather_buffer.h"
#include "comm/communicator.h"
#include "model/open_weights.h"
#include "parallel/tp/deferred_gradients.h"

namespace shardproof {

struct AsyncLinearOptions {
  std::string label = "linear";
  // Each rank's grad_x is one addend: all_reduce over tp sums them.
  bool reduce_input_gradient = false;
  // x is this rank's part of the sequence: it is all-gathered, and its gradient reduce-scattered.
  bool sequence_parallel = false;
  int64_t sequence_dim = 0;
  // Holds the gathered x, in the forward and again in the backward, which the buffer must outlive;
  // null: each gather takes new memory.
  GatherBuffer* gather_buffer = nullptr;
  std::shared_ptr<MainGradient> main_gradient = {};        // null: autograd gets the gradient
  std::shared_ptr<DeferredWeightGradients> deferred = {};  // null: the backward computes grad_W
  LeaveProduct leave = {};  // a split backward leaves grad_W; beside it `deferred` is not read
};

// `bias` may be undefined. A group of one communicates nothing. If x needs no gradient, no rank
// computes or reduces it. There are no second derivatives (asserted). Throws Error(kRefused) when
// both reduce_input_gradient and sequence_parallel are set; a backward throws Error(kBadInput)
// after `tp` has ended.
at::Tensor async_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        Communicator& tp, const AsyncLinearOptions& options);

// async_linear for a weight that is not trained: saves no input and computes no grad_W, but reduces
// grad_x, because layers below may be trained. Throws Error(kRefused) also when `deferred` is set.
at::Tensor frozen_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         Communicator& tp, const AsyncLinearOptions& options);

}  // namespace shardproof
