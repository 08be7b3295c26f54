// Workload: log-probabilities, entropy and KL over a vocabulary that is cut over tp.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Sharded: src/logprob/vocab_parallel_{logprob,entropy,kl}.h. Over dp the rows are cut evenly. The
// logits are exact in bfloat16, hence equal in every precision, and any error comes from the
// functions. Options: rows, vocab_size (a multiple of tp), spread (of the logits), temperature,
// block_rows, ruled_out_every (3: every third logit is -infinity, shifted by row; 0: none).
Workload logprob_workload();

}  // namespace shardproof::sim
