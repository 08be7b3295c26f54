// broadcast_data as a workload: a batch that only the first tp rank of each group reads.
#pragma once

#include "sim/workload/workload.h"

namespace shardproof::sim {

// Options: samples, tokens. The batch: token ids, their mask, a tensor without elements, one
// number. Outputs: what every rank has in the end, "got.<key>". The ranks that must not read hold
// other numbers. Over dp the samples are cut evenly: each group has its own. Sharded:
// src/parallel/tp/broadcast_data.h.
Workload broadcast_data_workload();

}  // namespace shardproof::sim
