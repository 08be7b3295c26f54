// Log-probabilities, entropy and KL over a vocabulary that tp cuts, as a workload.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Options: rows, vocab_size (a multiple of tp), spread (of the logits), temperature, block_rows,
// ruled_out_every (3: every third logit is -infinity, from another column in each row; 0: none).
// The logits are numbers that bfloat16 holds: in every precision the logits are the same, and what
// is left of the error is the function's own. Sharded: src/logprob/vocab_parallel_{logprob,entropy,
// kl}.h. Over dp the rows are cut evenly.
Workload logprob_workload();

}  // namespace shardproof::sim
