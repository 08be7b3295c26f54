// The product of a tensor-parallel linear layer, whose backward communicates while it computes.
//
//   forward    y = x W^T + b                         SP: x [.., S_tp, ..] is all-gathered first
//   backward   1 SP: all_gather of x starts          (x is kept as this rank's part only)
//              2 grad_x = g W                        the gather runs behind it
//              3 all_reduce of grad_x starts         SP: reduce_scatter to [.., S_tp, ..]
//              4 grad_W = g^T x                      the reduction runs behind it
//              5 grad_b = sum of g over all leading dims
//              6 grad_x is waited for
//
// grad_W goes into the main gradient where there is one, or is deferred; else it is a gradient like
// any other. Calls: "<label> forward", "<label> backward", "<label> regather".
//
// Legend: x [.., E], W [F, E], y [.., F], g the gradient of y; any number of leading dims, any
// strides. E in, F out, S sequence. Dtypes of x, W and b agree.
//
// Source: Megatron-LM layers.py, LinearWithGradAccumulationAndAsyncCommunication and
// LinearWithFrozenWeight. There the bias gradient of a deferred product is summed over the first
// dim only, and a trainable bias beside a frozen weight gets none; here both are whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "collective/gather_buffer.h"
#include "comm/communicator.h"
#include "parallel/tp/deferred_gradients.h"

namespace shardproof {

struct AsyncLinearOptions {
  std::string label = "linear";
  // grad_x is one addend per rank: summed over tp (all_reduce).
  bool reduce_input_gradient = false;
  // x is this rank's part of the sequence: gathered, its gradient reduce-scattered.
  bool sequence_parallel = false;
  int64_t sequence_dim = 0;
  // Where x is gathered into, forward and again in the backward, which it must outlive; null: into
  // memory of its own each time.
  GatherBuffer* gather_buffer = nullptr;
  std::shared_ptr<MainGradient> main_gradient = {};        // null: .grad
  std::shared_ptr<DeferredWeightGradients> deferred = {};  // null: computed at once
};

// `bias` may be undefined. A backward after `tp` has ended throws Error(kBadInput). A group of one
// communicates nothing.
// Where x needs no gradient its product and reduction are left out, on every rank alike. No second
// derivatives (asserted).
// Throws Error(kRefused): reduce_input_gradient and sequence_parallel at once.
at::Tensor async_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        Communicator& tp, const AsyncLinearOptions& options);

// The same for a weight that is not trained: keeps no input, computes no gradient of the weight,
// and still reduces grad_x: layers below may be trained. Throws Error(kRefused) as above, and where
// a product could be deferred.
at::Tensor frozen_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         Communicator& tp, const AsyncLinearOptions& options);

}  // namespace shardproof
