// Workload: next-token log-probabilities of sequences cut over cp, with the vocabulary cut over tp.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Sharded: src/logprob/context_logprob.h; each cp rank takes its positions of the logits.
//
//   rows             whole: two samples of 11 tokens, padded to 12 positions
//                    indexed: the same samples; a shuffled list gives each rank's positions
//                    packed: one row of sequences of 5, 1, 12 and 2 tokens, each padded to 12
//                    positions and cut after 9 tokens
//   contiguous       the layout, instead of zigzag (not with indexed)
//   reduce_scatter   each cp rank continues with a part of the outputs, else all with the same
//   vocab_size       a multiple of tp
//   temperature, block_rows
Workload context_logprob_workload();

}  // namespace shardproof::sim
