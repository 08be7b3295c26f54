// checkpointed_block as a workload: a tensor parallel block with dropout, run again in the
// backward.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

//   h = gelu(x W1^T) [rows of W1 cut over tp], dropped in the region
//   y = x + drop(sum over tp of h W2^T)        dropped alike on all tp ranks
//   z = tanh(y) * gain, then z V^T             a small body before a layer that keeps its input
//
// Options: samples, tokens, width, hidden, p; tp_ranks and dp_ranks as those of the mesh;
//   block    "plain", "checkpoint", or "spread" (its kept input over tp): how h and y are kept
//   norm     "plain", "checkpoint" or "without_output": the same of z
//   shared   z is y itself, so that an output that is not kept shares its memory with an input
//   replays  false: the checkpoint is not told of the streams, so the recomputation draws anew, as
//            a bug would
//
// Outputs y and the result, the draws of the forward and, behind the pass back, those of the
// recomputation ("draw.<place> again"). Figure "kept_bytes": what the forward leaves for the
// backward on this rank, the result included: "before" without any recomputing, "after" as asked.
// Sharded: src/random/checkpoint.h, checkpoint_without_output.h, parallel/tp/spread_activation.h.
Workload checkpoint_workload();

}  // namespace shardproof::sim
