// vocab_parallel_cross_entropy as a workload: the loss of each token, its vocabulary cut over tp.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Options: samples, tokens, vocab_size; padded_vocab (what tp pads the vocabulary to; 0: it
// divides), label_smoothing, gap (how far the largest logit of a row lies above the others),
// strided, overwrite_logits, read_after (the logits are read once more behind the loss: whoever
// overwrote them unasked is found). Sharded: src/logprob/vocab_parallel_cross_entropy.h. Over dp
// the samples are cut evenly.
Workload cross_entropy_workload();

}  // namespace shardproof::sim
