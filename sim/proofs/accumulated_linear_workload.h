// accumulated_linear as a workload: the main gradient of one weight over several microbatches.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Sharded: src/parallel/tp/async_linear.h under a column-parallel layer, or a row-parallel one. The
// passes back run inside: outputs are `main_grad`, what the buffer holds after the last microbatch,
// and `grad_x` of all microbatches. Inputs are the same on all dp ranks.
//
//   layer             column, row
//   uses              the weight is used so often in each microbatch, on x, 2x, ..
//   deferred_limit    -1: nothing is deferred; 0: all products; n: at most n. Of a column
//   narrow            the buffer is of the weight's own type
//   stand_in          what the weight's backward gives autograd for what is in the buffer already:
//                     none, nan, or zeros beside the real gradient of another use of the weight (a
//                     tied one), which finish_main_gradient() adds behind each microbatch
//   async_all_reduce  the product alone, asked for an all-reduce of its input's gradient also where
//                     sequence_parallel asks for a reduce-scatter. Of a column
//   bias              the layer adds one; another output is `grad_bias`. Of a column
Workload accumulated_linear_workload();

}  // namespace shardproof::sim
