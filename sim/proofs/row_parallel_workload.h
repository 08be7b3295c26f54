// Workload row_parallel_linear: y = x W^T + b, columns of W cut over tp.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Sharded: src/parallel/tp/row_parallel.h, with its options. Over dp the samples are cut evenly and
// the gradients of W and b are addends. `expert`: the workload sums y, as a dispatcher of tokens
// does, and then adds the bias.
Workload row_parallel_workload();

}  // namespace shardproof::sim
