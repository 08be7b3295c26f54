// Log-probabilities computed from hidden states through the vocabulary-sharded output layer, with
// the logits of only one block of rows at a time.
//
// Legend: E model dim, V_tp columns of this rank (vocab_range.h), {U_tp} not yet summed over tp.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/communicator.h"
#include "logprob/logit_rows.h"

namespace shardproof {

// vocab_parallel_logprob(hidden weight^T + bias, target) without storing the logits.
//
//   hidden   [.., E]      any float, any strides   equal on every tp rank
//   weight   [V_tp, E]    hidden's dtype           this rank's rows of the output layer
//   bias     [V_tp], or undefined
//   target   [..] int64   global token ids, equal on every tp rank
//   returns  [..]         float32, or float64 for float64; equal on every tp rank
//
// Forward   as vocab_parallel_logprob: three all_reduces, whatever the number of blocks
// Backward  recomputes each block's logits; all_reduce(sum) of grad_hidden {U_tp} over tp
//           ("<label> hidden backward"). grad_weight and grad_bias are this rank's own; in lower
//           precisions they are summed in float32 and rounded once.
// Memory    one block of logits (LogprobOptions::block_rows), and in the backward the gradients
// Throws    as vocab_parallel_logprob
at::Tensor fused_vocab_parallel_logprob(const at::Tensor& hidden, const at::Tensor& weight,
                                        const at::Tensor& bias, const at::Tensor& target,
                                        Communicator& tp, int64_t vocab_size,
                                        const LogprobOptions& options = {});

}  // namespace shardproof
