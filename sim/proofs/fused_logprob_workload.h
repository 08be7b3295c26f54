// Workload: log-probabilities directly from hidden states, with the output layer cut over tp.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Options: rows, hidden_size, vocab_size (a multiple of tp), bias, temperature, block_rows.
// Sharded: src/logprob/fused_logprob.h. Over dp the rows are cut evenly and the gradients of weight
// and bias are addends.
Workload fused_logprob_workload();

}  // namespace shardproof::sim
