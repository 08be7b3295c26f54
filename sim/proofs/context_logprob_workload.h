// Next-token log-probabilities of sequences that cp cuts, vocabulary cut over tp, as a workload.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Sharded: src/logprob/context_logprob.h on logits that each cp rank takes its positions of.
//
//   rows             whole: two samples of 11 tokens, padded to 12 positions
//                    indexed: the same, each rank's positions from a list without order
//                    packed: one row of sequences of 5, 1, 12 and 2 tokens, each padded to 12
//                    positions; those of more than 9 tokens are cut there
//   contiguous       instead of zigzag. Not of indexed
//   reduce_scatter   each cp rank goes on with a part of the outputs, else all with the same
//   vocab_size       a multiple of tp
//   temperature, block_rows
Workload context_logprob_workload();

}  // namespace shardproof::sim
