// Log-probabilities of given tokens when the vocabulary is split over tp.
//
// Legend: b samples, s positions, V vocabulary, V_tp columns of this rank, padding included
// (vocab_range.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/communicator.h"
#include "logprob/logit_rows.h"

namespace shardproof {

// Log-probability of each target under the softmax over the whole vocabulary.
//
//   logits    [.., V_tp]   any float, any strides   this rank's columns; with all V columns (a
//                                                   whole lm_head) there is no communication
//   target    [..]         int64                    global token ids, equal on every tp rank
//   returns   [..]         float32, or float64 for float64 logits; equal on every tp rank
//
// Forward   all_reduce(max), all_reduce(sum of exp), all_reduce(sum of the picked logit)
// Backward  none: each rank owns the gradient of its own columns. The incoming gradient must be the
//           whole one on every tp rank, as when all of them compute the same loss. A row whose
//           incoming gradient is 0 gets exactly 0, even if its logits are not finite.
// Memory    besides logits and result a few numbers per row and one block of rows in the wider type
//           (LogprobOptions::block_rows). The backward keeps the logits without a copy, so autograd
//           reports an error if they were written to before. The backward holds the gradient and
//           one block. `inference_only` keeps nothing.
// Golden    log_softmax over the full vocabulary, gathered at the target
// Throws    Error(kBadInput): a target outside 0..V-1, a temperature that is not above 0
// Source    NeMo-RL model_utils.py, DistributedLogprob. The maximum is subtracted before exp, so
//           the sum is at least 1 for any gap between logits. Inputs are never written to.
at::Tensor vocab_parallel_logprob(const at::Tensor& logits, const at::Tensor& target,
                                  Communicator& tp, int64_t vocab_size,
                                  const LogprobOptions& options = {});

// The log-probability of each token of `input_ids` given those before it; 0 at position 0.
//
//   logits      [b, s, V_tp]   logits[:, t] predict input_ids[:, t + 1]
//   input_ids   [b, s] int64
//   returns     [b, s]         the last position's logits predict nothing and get a gradient of 0
//
// Communication as vocab_parallel_logprob.
at::Tensor next_token_logprobs(const at::Tensor& logits, const at::Tensor& input_ids,
                               Communicator& tp, int64_t vocab_size,
                               const LogprobOptions& options = {});

}  // namespace shardproof
