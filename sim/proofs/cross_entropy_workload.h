// Workload vocab_parallel_cross_entropy: the loss of each token, with the vocabulary cut over tp.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Sharded: src/logprob/vocab_parallel_cross_entropy.h. Over dp the samples are cut evenly. Options:
// samples, tokens, vocab_size; padded_vocab (the padded size; 0: tp divides vocab_size),
// label_smoothing, gap (between the largest logit of a row and the others), strided,
// overwrite_logits, read_after (reads the logits after the loss, which shows whether they changed).
Workload cross_entropy_workload();

}  // namespace shardproof::sim
