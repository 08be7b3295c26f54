// Workload broadcast_data: a batch that only the first rank of each group reads.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Sharded: src/parallel/tp/broadcast_data.h. The batch has token ids, their mask, a tensor without
// elements and one number; ranks that may not read hold other numbers. Outputs: "got.<key>".
// Options: samples, tokens; axis of the groups (tp or dp; the samples are cut evenly over the
// other); floating (float64 instead of integers); two mistakes of a caller: missing (a key that no
// batch has), other_dtype (a tensor of another type).
Workload broadcast_data_workload();

}  // namespace shardproof::sim
