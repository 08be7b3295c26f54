// Activation checkpointing: a part of the model keeps only its inputs, and runs again in the
// backward pass with the same random numbers.
//
//   forward    outputs = body(inputs), without a graph; keeps the inputs and the streams' states
//   backward   restores the streams and the fork of the forward; runs the body with a graph, then
//              its backward; restores the streams that the backward found
//
// Parameters that the body holds get their gradients from the second run. The backward calls the
// body's collectives again, in the order of the forward.
//
// Source: Megatron-LM random.py, CheckpointFunction. Differences: there an argument that is spread
// over tp is overwritten with its chunk, so that other users of that tensor find a vector; here
// only the kept copy is a chunk. There the parameters of a body without an input that takes a
// gradient silently get none; here they get theirs. There the process's generators are restored
// too; here only those of the tracker, from which dropout (dropout.h) draws.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "random/rng_tracker.h"

namespace shardproof {

using CheckpointBody = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// How the first input is kept between forward and backward: whole, or as this rank's share.
class KeptActivation {
 public:
  virtual ~KeptActivation() = default;
  // Returns what to keep of `full`, in new memory. The checkpoint remembers the shape.
  virtual at::Tensor keep(const at::Tensor& full) = 0;
  // Returns `full`, of `shape`, from what was kept.
  virtual at::Tensor restore(const at::Tensor& kept, at::IntArrayRef shape) = 0;
};

struct CheckpointOptions {
  // Keeps the first input. Null: the input itself is kept, without a copy. Must outlive the
  // backward.
  KeptActivation* first_input = nullptr;
};

// Returns body(inputs) and recomputes it in the backward. `body` and `rng` must outlive the
// backward pass; with `rng` null nothing is drawn. Without gradients (NoGradGuard) it only returns
// body(inputs). Autograd reports an input that was written to in between. Inputs may be undefined
// or integers. Throws InternalError when the second run gives another number of outputs, and in the
// backward Error(kRefused) for grad(), which requests chosen gradients: the body's parameters would
// get theirs too. Use backward().
std::vector<at::Tensor> checkpoint(CheckpointBody body, const std::vector<at::Tensor>& inputs,
                                   RngTracker* rng, const CheckpointOptions& options = {});

}  // namespace shardproof
