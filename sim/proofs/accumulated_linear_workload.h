// Workload accumulated_linear: the main gradient of one weight over several microbatches.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Sharded: src/parallel/tp/async_linear.h in a column-parallel or row-parallel layer. The backwards
// are part of the workload: its outputs are `main_grad`, the buffer after the last microbatch, and
// `grad_x` of all microbatches. Inputs are the same on all dp ranks.
//
//   layer             column, row
//   uses              the layer is called so often in each microbatch, on x, 2x, ..
//   deferred_limit    -1: nothing is deferred; 0: all products; n: at most n (column)
//   narrow            the buffer has the weight's own type
//   stand_in          given to autograd for a gradient that is already in the buffer: none, nan, or
//                     zeros beside the real gradient of another use of the weight (a tied one),
//                     which finish_main_gradient() adds after each microbatch
//   async_all_reduce  calls async_linear without a layer, with reduce_input_gradient, also beside
//                     sequence_parallel (column)
//   bias              the layer adds one; another output is `grad_bias` (column)
Workload accumulated_linear_workload();

}  // namespace shardproof::sim
