// Next-token log-probabilities when the sequence is split over cp and the vocabulary over tp.
//
//   target      a b c d e f .. *   unmodified, sequence order, padded at the end
//   shifted     b c d e f .. 0 0   each sequence by one, BEFORE it is cut
//   cut         each rank gets the targets of the positions whose logits it holds
//   gathered    logprobs of b c d e f, back in sequence order
//
// The last token of a sequence and its padding predict nothing: their logits get a gradient of
// exactly 0.
//
// Legend: B samples, S tokens, T positions of the padded row, T_cp = T / cp, V_tp columns of this
// rank (vocab_range.h), N sequences of a pack, {U_cp} not yet summed over cp.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/communicator.h"
#include "logprob/logit_rows.h"
#include "sequence/sequence_layout.h"
#include "sequence/sequence_shard.h"

namespace shardproof {

// The two axes over which the logits are split. The caller owns the communicators.
struct LogprobAxes {
  Communicator& tp;
  Communicator& cp;
  int64_t vocab_size;
};

// How the shards are gathered, and hence what the gradient means. Pass one of these two
// (sequence_shard.h):
//   &sequence_gather_with_slice_backward            every cp rank computes the same loss
//   &sequence_gather_with_reduce_scatter_backward   each cp rank computes its part of the loss
// NeMo-RL uses the second (its all_reduce).
using SequenceGather = at::Tensor (*)(const at::Tensor& local, const SequenceLayout& layout,
                                      Communicator& cp, int64_t dim, std::string_view label);

// Takes zigzag (or contiguous) shards and unmodified targets.
//
//   logits    [B, T_cp, V_tp]
//   target    [B, S] int64   S <= T_cp * cp: padded at the end to the length of the logits
//   returns   [B, S-1]       logprob of target[:, t + 1] at t; [B, 0] for S of 0 and 1
//
// Forward   all_reduce x 3 over tp, all_gather over cp ("<label> gather")
// Backward  the gather's, over cp
// Throws    Error(kBadInput): more targets than the logits cover; Error(kRefused): T does not split
// Source    NeMo-RL model_utils.py, from_parallel_logits_to_logprobs. There too many targets fail
//           with an unclear error, and too few are not noticed in inference.
at::Tensor context_next_token_logprobs(const at::Tensor& logits, const at::Tensor& target,
                                       const LogprobAxes& axes, SequenceGather gather,
                                       const LogprobOptions& options = {},
                                       ContextLayout kind = ContextLayout::kZigzag);

// The same with `seq_index` [T_cp * cp], which gives the position of each local entry: rank r holds
// seq_index[r * T_cp], seq_index[r * T_cp + 1], ... Positions from S on are padding. Also throws
// Error(kBadInput) when seq_index is not a permutation.
// Source    NeMo-RL model_utils.py, dtensor_from_parallel_logits_to_logprobs.
at::Tensor indexed_next_token_logprobs(const at::Tensor& logits, const at::Tensor& target,
                                       const at::Tensor& seq_index, const LogprobAxes& axes,
                                       SequenceGather gather, const LogprobOptions& options = {});

// A packed row: its targets, the bounds of its sequences, and the row length of the result.
struct PackedTargets {
  at::Tensor target;             // [1, T] or [T] int64, unmodified
  at::Tensor cu_seqlens_padded;  // [N+1] int32 or int64, from 0 to T
  int64_t unpacked_seqlen = 0;   // of the unpacked rows, at least 1
  at::Tensor cu_seqlens = {};    // [N+1], real lengths; undefined: all positions are tokens
};

// Shifts, cuts (zigzag within itself) and restores each sequence of a pack separately.
//
//   logits    [1, T_cp, V_tp]
//   returns   [N, unpacked_seqlen - 1]   row i: logprobs of tokens 1, 2, ... of sequence i, then 0.
//             A sequence longer than unpacked_seqlen is cut there; the rest gets no gradient.
//
// Communication as context_next_token_logprobs: one gather for the whole pack.
// Throws    Error(kBadInput): cu_seqlens* that do not start at 0, decrease, do not end at T, or
// have
//           unequal sizes; logits that do not cover T; Error(kRefused): a padded length that does
//           not split
// Source    NeMo-RL model_utils.py, from_parallel_logits_to_logprobs_packed_sequences. There the
//           gathered row always has the default dtype.
at::Tensor packed_next_token_logprobs(const at::Tensor& logits, const PackedTargets& packed,
                                      const LogprobAxes& axes, SequenceGather gather,
                                      const LogprobOptions& options = {},
                                      ContextLayout kind = ContextLayout::kZigzag);

}  // namespace shardproof
