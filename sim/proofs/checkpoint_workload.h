// Workload checkpointed_block: a tensor-parallel block with dropout, recomputed in the backward.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

//   h = gelu(x W1^T) [rows of W1 cut over tp], dropped in the region
//   y = x + drop(sum over tp of h W2^T)        dropped equally on all tp ranks
//   z = tanh(y) * gain, then z V^T             a small body before a layer that saves its input
//
// Options: samples, tokens, width, hidden, p; tp_ranks and dp_ranks, equal to those of the mesh;
//   block    "plain", "checkpoint", or "spread" (input kept over tp): how h and y are saved
//   norm     "plain", "checkpoint" or "without_output": how z is saved
//   shared   z is y, so that an output that is not saved shares its memory with an input
//   replays  false: the checkpoint does not replay the streams, so the recomputation draws new
//            masks, as with a bug
//
// Outputs: y, the result, the draws of the forward and, after the backward, those of the
// recomputation ("draw.<place> again"). Figure "kept_bytes": the bytes that the forward leaves for
// the backward on this rank, result included, "before" without and "after" with the options.
// Sharded: src/random/checkpoint.h, checkpoint_without_output.h, parallel/tp/spread_activation.h.
Workload checkpoint_workload();

}  // namespace shardproof::sim
