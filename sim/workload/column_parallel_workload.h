// column_parallel_linear as a workload: y = x W^T + b, rows of W cut over tp.
#pragma once

#include "sim/workload/workload.h"

namespace shardproof::sim {

// Options: samples, tokens, in_features, out_features, bias, gather_output, sequence_parallel.
// Sharded: src/parallel/tp/column_parallel.h. Over dp the samples are cut evenly and the gradients
// of W and b are addends.
Workload column_parallel_workload();

}  // namespace shardproof::sim
