// Differentiable all-to-all: every rank sends each other rank a part of its rows.
//
//   forward    rows of dim 0, part i to rank i            all_to_all
//   backward   the rows' gradients return             all_to_all with the sizes exchanged
//
// Common to all: any floating dtype, any strides (also of the gradient), zero-sized parts. Inputs
// and incoming gradients are never written to. Calls are recorded under `label` with " forward" or
// " backward". An axis of one rank communicates nothing. A backward whose communicator has ended
// throws Error(kBadInput). No second derivatives (asserted).
//
// Source: Megatron-LM mappings.py, _AllToAll.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace shardproof {

// `input_sizes` are the rows for each rank and `output_sizes` the rows from each. Empty: even
// parts; throws Error(kRefused) with both numbers when rows do not divide. The matching of calls
// reports sizes on which the ranks disagree.
at::Tensor all_to_all_with_all_to_all_backward(const at::Tensor& input, Communicator& axis,
                                               std::string_view label,
                                               const std::vector<int64_t>& input_sizes = {},
                                               const std::vector<int64_t>& output_sizes = {});

// From a part of the tokens with all features to all tokens with a part of the features, and back.
//
//   n = 2      rank 0    tokens 0 1, features a b     tokens 0 1 2 3, feature a
//              rank 1    tokens 2 3, features a b     tokens 0 1 2 3, feature b
//
//   sequence_to_hidden    [.., H] with T_i tokens on rank i -> [T, H/n]
//   hidden_to_sequence    [.., H/n] with T tokens -> [T_i, H]
//
// Leading dims are flattened to tokens. `tokens` has the T_i of each rank if they differ. Throws
// Error(kRefused) with both numbers when H, or without `tokens` T, does not divide. Each function
// is the other's backward.
at::Tensor sequence_to_hidden(const at::Tensor& local, Communicator& axis, std::string_view label,
                              const std::vector<int64_t>& tokens = {});
at::Tensor hidden_to_sequence(const at::Tensor& local, Communicator& axis, std::string_view label,
                              const std::vector<int64_t>& tokens = {});

}  // namespace shardproof
