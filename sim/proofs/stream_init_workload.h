// Workload stream_init: a weight whose parts the ranks draw from separate streams.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// The judge compares the weight, assembled from the ranks' parts, and the draws. One device draws
// the part of each tp rank from the stream of that rank's seed. Sharded:
// src/parallel/tp/stream_init.h.
//
//   cut_features, whole_features   sizes of the weight; `dim` (0, 1) is the one that is cut
//   stride            equal blocks of the cut features, each cut evenly
//   ranks             number of ranks for which one device draws
//   axis              tp, cp, ulysses: whose ranks hold the parts. With another axis than tp the
//                     weight has a group of its own, as experts do, and tp ranks hold copies
//   expert            draws from the stream of experts
//   stream            a stream's name, as with a bug; "": the right one
Workload stream_init_workload();

}  // namespace shardproof::sim
