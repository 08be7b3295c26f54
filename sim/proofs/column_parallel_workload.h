// column_parallel_linear as a workload: y = x W^T + b, rows of W cut over tp.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Sharded: src/parallel/tp/column_linear.h, with its options; `in_slot` takes the plan's layer
// (column_parallel.h), which cuts unevenly too and knows bias, gather_output and sequence_parallel
// only. Over dp the samples are cut evenly and the gradients of W and b are addends.
//
//   fused            none, gate_up (two equal blocks), qkv (a half and two quarters)
//   stride           as many equal blocks
//   external_whole   the call is given all rows of an external weight, as a mistake would be
//   runtime_gather   default, yes, no: overrides gather_output in the call
//   disable_grad_reduce   here the caller sums the gradient of x
//   expert           here the caller gathers x, as a dispatcher of tokens would
Workload column_parallel_workload();

}  // namespace shardproof::sim
