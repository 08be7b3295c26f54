// stream_init as a workload: a weight whose parts the ranks draw from streams of their own.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Judged are the weight, put together from the ranks' parts, and who drew what. One device draws
// the part of each tp rank from the stream of its seed. Sharded: src/parallel/tp/stream_init.h.
//
//   cut_features, whole_features   sizes of the weight; `dim` (0, 1) is the one that is cut
//   stride            equal blocks of the cut features, each cut evenly
//   ranks             how many ranks one device draws for
//   axis              tp, cp, ulysses: whose ranks hold the parts. With another one than tp the
//                     weight has a group of its own, as experts do, and tp ranks hold copies
//   expert            an expert's weight: of that stream
//   stream            "": the weight's own; else its name, as a bug would
Workload stream_init_workload();

}  // namespace shardproof::sim
