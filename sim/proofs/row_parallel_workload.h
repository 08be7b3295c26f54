// row_parallel_linear as a workload: y = x W^T + b, columns of W cut over tp.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Sharded: src/parallel/tp/row_parallel.h, with its options. Over dp the samples are cut evenly and
// the gradients of W and b are addends. `expert`: here the caller sums y, as a dispatcher of tokens
// would, and adds the bias then.
Workload row_parallel_workload();

}  // namespace shardproof::sim
