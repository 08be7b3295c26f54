// The optimizer of a scenario under PyTorch's names, its learning rates, and the norm that
// gradients are clipped to.
#pragma once

#include "sim/case/case_spec.h"
#include "sim/case/scenario/settings.h"

namespace shardproof::sim {

// Fills `optimizer`. Throws Error(kBadInput) with its place: a constant that the optimizer does not
// have, constants that exclude each other, a norm that there is not; all that read_scheduler
// throws.
//
// `foreach` and `fused` say how PyTorch computes a step, not which: they are checked as PyTorch
// checks them, and the step is the same. `amsgrad`, `maximize`, `capturable` and `differentiable`
// are understood, but no step here has them.
void read_optimizer(const Settings& settings, OptimizerSpec& optimizer);

}  // namespace shardproof::sim
