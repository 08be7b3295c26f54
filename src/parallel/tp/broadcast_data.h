// A batch that one rank of a group reads and all of its ranks need.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace shardproof {

// Returns the tensors named by `keys` of the group's first rank on every rank of the group.
//
//   keys      the same on every rank, in the same order, none twice
//   data      read on rank 0 of the group only; may hold more than `keys`
//   dtype     of all named tensors, which travel as one tensor
//   returns   each key's tensor, contiguous, on `device`, with any number of dims and elements;
//             shares no memory with `data`
//
// Forward   all_reduce(max) of 6 numbers, from which all ranks learn whether to continue; broadcast
//           of the sizes; broadcast of all elements in one tensor, if there are any
// Backward  none
// Throws    Error(kBadInput), the same on every rank and before data is sent: a key that rank 0's
//           data lacks, a tensor of another dtype, a repeated key, ranks that pass other keys or
//           dtypes than rank 0
// Source    Megatron-LM data.py, broadcast_data. It sends the sizes over the default group and the
//           data over the given one, ends a list of sizes at 0 (an empty tensor loses its later
//           dims), takes at most 4 dims, and fails on rank 0 alone for a missing key or a wrong
//           dtype, while the other ranks wait forever.
std::map<std::string, at::Tensor> broadcast_data(const std::vector<std::string>& keys,
                                                 const std::map<std::string, at::Tensor>& data,
                                                 at::ScalarType dtype, at::Device device,
                                                 Communicator& group);

}  // namespace shardproof
