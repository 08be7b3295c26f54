// accumulated_linear as a workload: the main gradient of one weight over several microbatches.
#pragma once

#include "sim/workload/workload.h"

namespace shardproof::sim {

// Sharded: src/parallel/tp/async_linear.h and main_gradient.h under a column-parallel layer. The
// passes back run inside: outputs are `main_grad`, what the buffer holds after the last microbatch,
// and `grad_x` of all microbatches. Inputs are the same on all dp ranks.
//
//   uses             the weight is used so often in each microbatch, on x, 2x, ..
//   deferred_limit   -1: nothing is deferred; 0: all products; n: at most n
Workload accumulated_linear_workload();

}  // namespace shardproof::sim
