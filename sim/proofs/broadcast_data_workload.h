// broadcast_data as a workload: a batch that only the first tp rank of each group reads.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Options: samples, tokens, axis (tp or dp: whose groups; over the other one the samples are cut
// evenly, so that each group has its own), floating (of float64 instead of integers), and what a
// caller may get wrong: missing (a key that no batch has), other_dtype (a tensor of another type).
// The batch: token ids, their mask, a tensor without elements, one number. Outputs: what every rank
// has in the end, "got.<key>". The ranks that must not read hold other numbers. Sharded:
// src/parallel/tp/broadcast_data.h.
Workload broadcast_data_workload();

}  // namespace shardproof::sim
