// Cross entropy of each token when the vocabulary is split over tp, with label smoothing.
//
// Legend: V vocabulary, V_tp columns of this rank, padding included (vocab_range.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "comm/communicator.h"

namespace shardproof {

struct CrossEntropyOptions {
  // a in 0 <= a < 1: the target gets the probability 1 - a, and all other V - 1 tokens share a.
  double label_smoothing = 0;
  // true: the backward writes the gradient into the memory of the logits and allocates none.
  // Autograd reports an error if the logits were saved for another backward; other users are not
  // warned.
  bool overwrite_logits = false;
  std::string label = "cross entropy";  // of the collectives: "<label> max", ..
  int64_t block_rows = 0;               // as LogprobOptions::block_rows
};

//   logits    [.., V_tp]   any float, any strides   this rank's columns; nothing is sent if it
//                                                   holds all V
//   target    [..]         int64                    global token ids, equal on every tp rank
//   returns   [..]         float32, or float64 for float64 logits; equal on every tp rank
//
//   loss = -(1 - s) * logp[target] - s * mean over V of logp,    s = a * V / (V - 1)
//
// Forward   all_reduce(max), all_reduce(sum of exp), all_reduce(picked logit); with smoothing
//           all_reduce(sum of logits - max)
// Backward  none: each rank owns the gradient of its own columns. The incoming gradient must be
//           the whole one on every tp rank. A row whose incoming gradient is 0 gets exactly 0.
// Memory    as vocab_parallel_logprob: one block of rows, and in the backward the gradient (none
//           with overwrite_logits)
// Golden    cross_entropy over the full vocabulary, smoothed as above
// Throws    Error(kBadInput): smoothing outside 0 <= a < 1 or with a vocabulary of one token, a
//           target outside 0..V-1, overwriting of logits that overlap
// Source    Megatron-LM cross_entropy.py, VocabParallelCrossEntropy. There V and the mean of
//           smoothing are those of one rank's columns, so each tp size has another loss and the
//           ranks disagree; the mean is of log(softmax), which is -infinity for gaps of about 104
//           or more between logits (float32); float32 logits are always overwritten, others never;
//           and the group is always the default one. Here V is the global vocabulary, the mean is
//           of the logits, overwriting is an option, and the caller chooses the group.
at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                        Communicator& tp, int64_t vocab_size,
                                        const CrossEntropyOptions& options = {});

}  // namespace shardproof
