// Entropy of each row's distribution when the vocabulary is split over tp.
//
// Legend: V vocabulary, V_tp columns of this rank (vocab_range.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/communicator.h"
#include "logprob/logit_rows.h"

namespace shardproof {

// -sum over the vocabulary of p log p, p = softmax(logits / temperature). A logit of -infinity has
// p = 0 and adds nothing.
//
//   logits   [.., V_tp]   any float, any strides
//   returns  [..]         float32, or float64 for float64 logits; equal on every tp rank
//
// Forward   all_reduce(max), all_reduce(sums of exp and of exp times logit) over tp
// Backward  none: -p (log p + entropy) of this rank's columns. The incoming gradient must be the
//           whole one on every tp rank. A row whose incoming gradient is 0 gets exactly 0.
// Memory    as vocab_parallel_logprob
// Throws    Error(kBadInput): a temperature that is not above 0
at::Tensor vocab_parallel_entropy(const at::Tensor& logits, Communicator& tp, int64_t vocab_size,
                                  const LogprobOptions& options = {.label = "entropy"});

}  // namespace shardproof
