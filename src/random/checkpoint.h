// Activation checkpointing: a part of the model keeps its inputs only, and runs again in the
// backward pass, drawing the same random numbers.
//
//   forward    outputs = body(inputs), without a graph; kept: the inputs, the streams' states
//   backward   the streams as they were, in the fork they were in; body again, with a graph;
//              its backward; the streams as they were before the backward
//
// Parameters that the body holds get their gradients from the second run. Collectives in the body
// are called again in the backward, in the order of the forward.
//
// Source: Megatron-LM random.py, CheckpointFunction. Differences: there an argument that is spread
// over tp is overwritten with its chunk, so whoever else holds that tensor finds a vector; here
// only the kept copy is a chunk. There a body none of whose inputs takes a gradient silently gives
// its parameters none; here they get theirs. There the process's generators are restored too; here
// only the tracker's, which are all that dropout (dropout.h) draws from.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "random/rng_tracker.h"

namespace shardproof {

using CheckpointBody = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// How the first input is kept between forward and backward: whole, or this rank's share of it.
class KeptActivation {
 public:
  virtual ~KeptActivation() = default;
  // What is kept of `full`; shares no memory with it. Its shape is remembered by the checkpoint.
  virtual at::Tensor keep(const at::Tensor& full) = 0;
  // `full` again, of `shape`.
  virtual at::Tensor restore(const at::Tensor& kept, at::IntArrayRef shape) = 0;
};

struct CheckpointOptions {
  // Of the first input. Null: the input itself, without a copy. Must outlive the backward.
  KeptActivation* first_input = nullptr;
};

// body(inputs), recomputed in the backward. `body` and `rng` must outlive the backward pass; `rng`
// may be null: nothing is drawn. Without gradients (NoGradGuard) it is body(inputs).
// An input that is written to in between is told by autograd. Inputs may be undefined or integers.
// Throws InternalError when the body gives another number of outputs the second time;
// Error(kRefused) in the backward of a call that asked for the gradients of chosen tensors, grad():
// the body's parameters would get theirs beside it, unasked. Use backward().
std::vector<at::Tensor> checkpoint(CheckpointBody body, const std::vector<at::Tensor>& inputs,
                                   RngTracker* rng, const CheckpointOptions& options = {});

}  // namespace shardproof
