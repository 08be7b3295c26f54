// Differentiable all-to-all: every rank gives each other rank a part of its rows.
//
//   forward    rows of dim 0, part i to rank i            all_to_all
//   backward   the rows' gradients go back where they     all_to_all, the sizes changed over
//              came from
//
// Common to all: any floating dtype, any strides (also of the gradient), zero-sized parts; inputs
// and incoming gradients are never written to. Recorded under `label` with " forward" or
// " backward". An axis of one rank communicates nothing. A backward whose
// communicator has ended throws Error(kBadInput). No second derivatives (asserted).
//
// Source: Megatron-LM mappings.py, _AllToAll.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace shardproof {

// `input_sizes`: rows for each rank; `output_sizes`: rows that come from each. Empty: even parts;
// rows that do not divide are an Error(kRefused) with both numbers. Sizes that the ranks do not
// agree on are found where calls are matched.
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
// Leading dims are flattened to tokens. `tokens`: T_i of each rank, where they differ. Throws
// Error(kRefused) with both numbers: H, or without `tokens` T, that does not divide.
// Each is the other's backward.
at::Tensor sequence_to_hidden(const at::Tensor& local, Communicator& axis, std::string_view label,
                              const std::vector<int64_t>& tokens = {});
at::Tensor hidden_to_sequence(const at::Tensor& local, Communicator& axis, std::string_view label,
                              const std::vector<int64_t>& tokens = {});

}  // namespace shardproof
