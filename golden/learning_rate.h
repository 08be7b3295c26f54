// The learning rate of each step by the closed form of its scheduler.
//
//   ConstantLR          initial * factor before total_iters, then initial
//   LinearLR            initial * (start + (end - start) * min(epoch, total_iters) / total_iters)
//   CosineAnnealingLR   eta_min + (initial - eta_min) * (1 + cos(pi * epoch / T_max)) / 2
//   LambdaLR            initial * lr_lambda[epoch], the last one for all further epochs
//
// `epoch` counts from 0 at the start and again from each milestone.
#pragma once

#include <cstdint>

#include "sim/case/case_spec.h"

namespace shardproof::golden {

// The rate of optimizer step `steps` + 1.
double learning_rate(const sim::OptimizerSpec& spec, int64_t steps);

}  // namespace shardproof::golden
