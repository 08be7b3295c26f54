// vocab_parallel_embedding as a workload: rows of the embedding cut over tp.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Sharded: src/parallel/tp/vocab_embedding.h, with its options. Over dp the samples are cut evenly
// and the weight's gradient is an addend. With reduce_scatter the output is [S_tp, B, E].
Workload vocab_embedding_workload();

}  // namespace shardproof::sim
