// Kullback-Leibler divergence of two policies when the vocabulary is split over tp.
//
// Legend: V vocabulary, V_tp columns of this rank (vocab_range.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/communicator.h"
#include "logprob/logit_rows.h"

namespace shardproof {

// KL(p || q) = sum over the vocabulary of p (log p - log q), where p and q are the softmax of the
// logits divided by the temperature. Entries with p = 0 add nothing; where only q is 0 it is
// infinite.
//
//   logits_p, logits_q   [.., V_tp]   of one shape and dtype, any float, any strides
//   returns              [..]         float32, or float64 for float64 logits; equal on every tp
//                                     rank
//
// Forward   all_reduce(max), all_reduce(sums) over tp
// Backward  none: p (log p - log q - KL) to logits_p, q - p to logits_q. The incoming gradient must
//           be the whole one on every tp rank. A row whose incoming gradient is 0 gets exactly 0.
// Memory    as vocab_parallel_logprob, two blocks
// Throws    Error(kBadInput): a temperature that is not above 0
at::Tensor vocab_parallel_kl(const at::Tensor& logits_p, const at::Tensor& logits_q,
                             Communicator& tp, int64_t vocab_size,
                             const LogprobOptions& options = {.label = "kl"});

}  // namespace shardproof
