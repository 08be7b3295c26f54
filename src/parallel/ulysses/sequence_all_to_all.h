// Exchanges one cut dim for another: each rank sends parts of `scatter_dim` and receives the other
// ranks' parts of `gather_dim`. Ulysses goes from a part of the sequence with all heads to the
// whole sequence with a part of the heads, and back.
//
//   U = 2, scatter_dim = heads, gather_dim = tokens
//   rank 0   tokens 0 1, heads a b        tokens 0 1 2 3, head a
//   rank 1   tokens 2 3, heads a b        tokens 0 1 2 3, head b
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace shardproof {

struct DimTrade {
  at::Tensor tensor;
  int64_t scatter_dim = 2;
  int64_t gather_dim = 1;
};

// Exchanges one or many tensors in one call, each with its own dims. The next tensor's exchange
// starts before the previous result is concatenated.
//
//   tensor    [.., D_s, .., D_g, ..]        any dtype, any strides; equal shapes on all ranks
//   returns   [.., D_s / U, .., D_g * U, ..]   parts of D_g in rank order
//
// Forward   all_to_all per tensor, labeled "<label> <index> forward"
// Backward  the same with the two dims exchanged, "<label> <index> backward"
// Golden    narrow and cat over all ranks' tensors
// Throws    Error(kRefused): scatter_dim does not divide by the group. (torch.tensor_split in
//           LightRFT sends uneven parts, which the other ranks take for even ones.)
//
// A group of one returns the tensors unchanged. A backward after `ulysses` has ended throws
// Error(kBadInput). All results of a call take part in the backward, unused ones with zeros. No
// second derivatives.
// Source    LightRFT parallel_utils.py, _SeqAllToAll
std::vector<at::Tensor> sequence_all_to_all(const std::vector<DimTrade>& trades,
                                            Communicator& ulysses, std::string_view label);

}  // namespace shardproof
