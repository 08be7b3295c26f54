// AdamW and SGD on plain tensors. A sharded optimizer is this one on local shards: every update is
// elementwise, so that a shard's step is the shard of the step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace shardproof {

enum class OptimizerKind { kAdamW, kSgd };

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double lr = 1e-3;
  double beta1 = 0.9;    // AdamW
  double beta2 = 0.999;  // AdamW
  double eps = 1e-8;     // AdamW
  double weight_decay =
      0.01;                // AdamW: decoupled (Loshchilov and Hutter); SGD: added to the gradient
  double momentum = 0.0;   // SGD
  double dampening = 0.0;  // SGD: of what joins the momentum, from the second step on
  bool nesterov = false;   // SGD: a step ahead along the momentum; PyTorch wants no dampening then
};

// One parameter's state. Undefined tensors: no step taken yet.
struct OptimizerState {
  int64_t step = 0;
  at::Tensor exp_avg;          // AdamW
  at::Tensor exp_avg_sq;       // AdamW
  at::Tensor momentum_buffer;  // SGD with momentum > 0
};

// Updates `parameter` and `state` in place, `parameter` [..], `grad` the same shape and dtype.
// No communication.
void optimizer_step(const at::Tensor& parameter, const at::Tensor& grad, OptimizerState& state,
                    const OptimizerOptions& options);

}  // namespace shardproof
