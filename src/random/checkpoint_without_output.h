// A checkpoint that does not keep its output either: the memory is freed once the forward has used
// it, and recomputed just before the backward reads it.
//
//   CheckpointWithoutOutput norm;
//   y = norm.run(body, {x}, &rng)[0];      y is read by a following layer, which keeps it
//   z = linear(y);
//   norm.discard_outputs_until(z);         frees y's memory now; z's gradient restores it
//
// A plain checkpoint (checkpoint.h) saves the tensors inside the body; its output stays, because
// the next layer keeps it for its own backward. This one suits small bodies (norm, activation)
// before a layer that keeps its input.
//
// The caller must guarantee that no code in the forward reads the outputs after the discard, and
// that the backward computes the gradient of the hook tensor before any code reads them. So the
// hook tensor must depend on the outputs and lie on every backward path to them: use the result of
// the layer that keeps them. A hook that does not depend on them is refused.
//
// Source: Megatron-LM random.py, CheckpointWithoutOutput. Differences: there an output that shares
// its memory with an input, or with a tensor that the body holds, loses it for both; here it is
// kept. There the recomputed output is copied into the old memory, so that both exist for a moment;
// here the old tensor takes the new memory.
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

  // Returns body(inputs). Call it once. `rng` may be null and must outlive the backward. Without
  // gradients, discard_outputs_until() only frees the memory.
  std::vector<at::Tensor> run(CheckpointBody body, const std::vector<at::Tensor>& inputs,
                              RngTracker* rng);
  // Frees the outputs' memory now and recomputes it when the gradient of `hook` arrives. Call it
  // once, after run(). Returns the freed bytes. Throws Error(kBadInput) when `hook` takes a
  // gradient but does not depend on the outputs. In the backward it throws as checkpoint() does.
  int64_t discard_outputs_until(const at::Tensor& hook);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace shardproof
