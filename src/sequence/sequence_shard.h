// Cuts tensors along the sequence by a SequenceLayout, restores them, and gathers them
// differentiably over the context-parallel axis.
//
//   sequence_shard     [.., T, ..]    -> [.., T_cp, ..]   one rank's positions, in its local order
//   sequence_unshard   [.., T, ..] gathered in rank order -> [.., T, ..] in sequence order
//   pad_sequences      [.., n, ..]    -> [.., T, ..]      adds padding between the sequences
//
// Legend: n tokens of all sequences without padding, T positions of the padded row, T_cp = T / cp,
// {U_cp} not yet summed over cp. Any dtype, any strides, any dim (negative ones count from the
// end). Gradients flow through all of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "comm/communicator.h"
#include "sequence/sequence_layout.h"

namespace shardproof {

// The positions that `cp_rank` holds. No communication. The gradient is zero where another rank
// holds the position.
at::Tensor sequence_shard(const at::Tensor& row, const SequenceLayout& layout, int64_t cp_rank,
                          int64_t dim);

// Restores the sequence order of a row that was concatenated in rank order. No communication.
at::Tensor sequence_unshard(const at::Tensor& gathered, const SequenceLayout& layout, int64_t dim);

// Adds the layout's padding, which holds `value` and gives no gradient.
at::Tensor pad_sequences(const at::Tensor& tokens, const SequenceLayout& layout, int64_t dim,
                         double value = 0);

// All-gathers `dim` over cp and restores the sequence order. Choose by what the ranks compute next:
//
//   with_reduce_scatter_backward   each rank computes ITS PART of the loss: its gradient is an
//                                  addend, {U_cp}, and the backward sums over cp
//   with_slice_backward            all ranks compute THE SAME loss: each holds the whole gradient
//                                  and keeps its own positions; a sum would be cp times too large
//
//   forward    [.., T_cp, ..] -> [.., T, ..]          all_gather
//   backward   [.., T, ..] {U_cp} -> [.., T_cp, ..]   reduce_scatter, or no communication
//
// AllGatherCPTensor in NeMo-RL model_utils.py has the first backward, as all_reduce and selection.
at::Tensor sequence_gather_with_reduce_scatter_backward(const at::Tensor& local,
                                                        const SequenceLayout& layout,
                                                        Communicator& cp, int64_t dim,
                                                        std::string_view label);
at::Tensor sequence_gather_with_slice_backward(const at::Tensor& local,
                                               const SequenceLayout& layout, Communicator& cp,
                                               int64_t dim, std::string_view label);

}  // namespace shardproof
