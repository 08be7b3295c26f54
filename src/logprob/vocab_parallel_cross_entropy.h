// Cross entropy of each token when the vocabulary is split over tp, with label smoothing.
//
// Legend: V vocabulary, V_tp columns of this rank, padding included (vocab_range.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "comm/communicator.h"

namespace shardproof {

struct CrossEntropyOptions {
  // a in 0 <= a < 1: the target gets the probability 1 - a, all other V - 1 tokens share a.
  double label_smoothing = 0;
  // true: the backward writes the gradient into the logits' own memory and takes none of its own.
  // Whoever saved the logits for a backward is told by autograd; nobody else is.
  bool overwrite_logits = false;
  std::string label = "cross entropy";  // of the collectives: "<label> max", ..
  int64_t block_rows = 0;               // as LogprobOptions::block_rows
};

//   logits    [.., V_tp]   any float, any strides   this rank's columns; or all V of them: nothing
//                                                   is communicated then
//   target    [..]         int64                    global token ids, equal on every tp rank
//   returns   [..]         float32, or float64 for float64 logits; equal on every tp rank
//
//   loss = -(1 - s) * logp[target] - s * mean over V of logp,    s = a * V / (V - 1)
//
// Forward   all_reduce(max), all_reduce(sum of exp), all_reduce(picked logit); with smoothing
//           all_reduce(sum of logits - max)
// Backward  none: each rank owns the gradient of its own columns; the incoming one is the whole one
//           on every tp rank. A row whose incoming gradient is 0 gets exactly 0.
// Memory    as vocab_parallel_logprob: one block of rows, and in the backward the gradient (none
//           with overwrite_logits)
// Golden    cross_entropy over the full vocabulary, smoothed as above
// Throws    Error(kBadInput): smoothing outside 0 <= a < 1 or of a vocabulary of one token, a
//           target outside 0..V-1, overlapping logits that are to be overwritten
// Source    Megatron-LM cross_entropy.py, VocabParallelCrossEntropy. There V and the mean of
//           smoothing are those of one rank's columns, so each tp size has another loss and the
//           ranks disagree; the mean is taken of log(softmax), which is -infinity from a gap of
//           about 104 between logits on (float32); float32 logits are overwritten without being
//           asked, others are not; and the group is always the default one. Here: the global
//           vocabulary, the logits themselves, never unless asked, the group that is given.
at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                        Communicator& tp, int64_t vocab_size,
                                        const CrossEntropyOptions& options = {});

}  // namespace shardproof
