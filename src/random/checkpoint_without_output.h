// A checkpoint whose output is not kept either: its memory is given back once the forward has used
// it, and comes back, recomputed, just before the backward reads it.
//
//   CheckpointWithoutOutput norm;
//   y = norm.run(body, {x}, &rng)[0];      y is read by a following layer, which keeps it
//   z = linear(y);
//   norm.discard_outputs_until(z);         y's memory is free now; z's gradient brings it back
//
// A plain checkpoint (checkpoint.h) saves what is inside the body; its output stays, because the
// layer after it keeps it for its own backward. This one suits small bodies (norm, activation)
// before a layer that keeps its input.
//
// The caller holds two things: nothing in the forward reads the outputs after the discard, and in
// the backward the gradient of the hook tensor is computed before anything reads them. The hook
// tensor therefore comes after the outputs and on every way back to them: the result of the layer
// that keeps them. One that does not depend on them is refused.
//
// Source: Megatron-LM random.py, CheckpointWithoutOutput. Differences: there an output that shares
// its memory with an input, or with a tensor that the body holds, loses it for both; here it is
// kept. There the recomputed output is copied into the old memory, so that twice the size is held
// for a moment; here the old tensor takes the new memory over.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "random/checkpoint.h"

namespace shardproof {

class CheckpointWithoutOutput {
 public:
  CheckpointWithoutOutput();
  ~CheckpointWithoutOutput();
  CheckpointWithoutOutput(CheckpointWithoutOutput&&) noexcept;
  CheckpointWithoutOutput& operator=(CheckpointWithoutOutput&&) noexcept;

  // body(inputs); once. `rng` may be null and must outlive the backward. Without gradients it is
  // body(inputs), and discard_outputs_until() only gives the memory back.
  std::vector<at::Tensor> run(CheckpointBody body, const std::vector<at::Tensor>& inputs,
                              RngTracker* rng);
  // Gives the outputs' memory back now, and has it recomputed when the gradient of `hook` arrives.
  // Once, after run(). Returns the bytes given back. Throws Error(kBadInput): `hook` takes a
  // gradient but does not depend on the outputs. In the backward: as checkpoint().
  int64_t discard_outputs_until(const at::Tensor& hook);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace shardproof
