// Log-probabilities of given tokens when the vocabulary is split over tp.
//
// The vocabulary is padded to a multiple of tp and cut evenly: with V = 10 and tp = 4 a rank holds
// 3 columns, rank 3 holds id 9 and two columns of padding, which no softmax counts and no gradient
// reaches.
//
//   rank 0      rank 1      rank 2      rank 3
//   0 1 2       3 4 5       6 7 8       9 . .
//
// Legend: b samples, s positions, V vocabulary, V_tp columns of this rank, padding included.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "comm/communicator.h"

namespace shardproof {

// The token ids whose logits a rank holds: `start`, `start` + 1, ... Of its `columns` the first
// `counted` are ids of the vocabulary, the rest is padding.
struct VocabRange {
  int64_t start = 0;
  int64_t columns = 0;
  int64_t counted = 0;
};
VocabRange vocab_range(int64_t vocab_size, int64_t tp_size, int64_t tp_rank);

struct LogprobOptions {
  // true: nothing is kept for a backward. Default: when gradients are off.
  std::optional<bool> inference_only = std::nullopt;
  // Of the collectives: "<label> max", "<label> sum", "<label> picked".
  std::string label = "logprobs";
};

// Log-probability of each target under the softmax over the whole vocabulary.
//
//   logits    [.., V_tp]   any float, any strides   this rank's columns; or all V columns (a whole
//                                                   lm_head): nothing is communicated then
//   target    [..]         int64                    global token ids, equal on every tp rank
//   returns   [..]         float32, or float64 for float64 logits; equal on every tp rank
//
// Forward   all_reduce(max), all_reduce(sum of exp), all_reduce(sum of the picked logit)
// Backward  none: each rank owns the gradient of its own columns. Its incoming gradient must be the
//           whole one on every tp rank, as when all of them compute the same loss.
// Golden    log_softmax over the full vocabulary, gathered at the target
// Throws    Error(kBadInput): a target outside 0..V-1
// Source    seed 000, DistributedLogprob. The maximum is subtracted before exp, so the sum is at
//           least 1: any gap between logits is safe. Inputs are never written to.
at::Tensor vocab_parallel_logprob(const at::Tensor& logits, const at::Tensor& target,
                                  Communicator& tp, int64_t vocab_size,
                                  const LogprobOptions& options = {});

// The log-probability of each token of `input_ids` given those before it; 0 at position 0.
//
//   logits      [b, s, V_tp]   logits[:, t] predict input_ids[:, t + 1]
//   input_ids   [b, s] int64
//   returns     [b, s]         the last position's logits predict nothing: their gradient is 0
//
// Communication as vocab_parallel_logprob.
at::Tensor next_token_logprobs(const at::Tensor& logits, const at::Tensor& input_ids,
                               Communicator& tp, int64_t vocab_size,
                               const LogprobOptions& options = {});

}  // namespace shardproof
