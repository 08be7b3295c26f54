// AdamW and SGD on plain tensors. A sharded optimizer is this one on local shards: every update is
// elementwise, so the step of a shard is the shard of the step. That is not so for Muon (muon.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/training_choices.h"

namespace shardproof {

// The state of one parameter. Its tensors are undefined before the first step.
struct OptimizerState {
  int64_t step = 0;
  at::Tensor exp_avg;          // AdamW
  at::Tensor exp_avg_sq;       // AdamW
  at::Tensor momentum_buffer;  // SGD with momentum > 0, Muon
};

// Updates `parameter` and `state` in place. `grad` must have the shape and dtype of `parameter`
// [..]. With kMuon it makes the step of AdamW. No communication.
void optimizer_step(const at::Tensor& parameter, const at::Tensor& grad, OptimizerState& state,
                    const OptimizerOptions& options);

}  // namespace shardproof
