// Workload column_parallel_linear: y = x W^T + b, rows of W cut over tp.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Sharded: src/parallel/tp/column_parallel.h, with its options. Over dp the samples are cut evenly
// and the gradients of W and b are addends.
//
//   fused            none, gate_up (two equal blocks), qkv (a half and two quarters)
//   runtime_gather   default, yes, no: overrides gather_output before the call
//   disable_grad_reduce   the workload, as the layer's caller, sums the gradient of x
//   expert           the workload gathers x, as a dispatcher of tokens does
//   async_grad       the gradient of x is reduced while that of W is computed
Workload column_parallel_workload();

}  // namespace shardproof::sim
