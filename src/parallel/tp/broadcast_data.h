// A batch read by one rank of a group and needed by all of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace shardproof {

// The tensors named by `keys`, from rank 0 of `group` (its first rank, wherever that is in the
// world) to every rank of it.
//
//   keys      the same on every rank, in the same order, none twice
//   data      read on rank 0 of the group only; may hold more than `keys`
//   dtype     of all of them: what is sent is one tensor
//   returns   each key's tensor, contiguous, on `device`, of any number of dims, also without
//             elements or without dims; shares no memory with `data`
//
// Forward   all_reduce(max) of 6 numbers: all ranks learn whether to go on; broadcast of the sizes;
//           broadcast of all elements in one tensor, where there are any
// Backward  none
// Throws    Error(kBadInput), the same sentence on every rank, before anything is sent: a key that
//           rank 0's data lacks, a tensor of another dtype, a key given twice, ranks that ask for
//           different keys or dtypes
// Source    Megatron-LM data.py, broadcast_data. There sizes went over the default group although
//           the data went over the given one; a size of 0 ended the list of sizes, so an empty
//           tensor came out with its later dims missing; tensors of 5 dims were too many; and a
//           missing key or a wrong dtype failed on rank 0 alone, while the others waited for ever.
std::map<std::string, at::Tensor> broadcast_data(const std::vector<std::string>& keys,
                                                 const std::map<std::string, at::Tensor>& data,
                                                 at::ScalarType dtype, at::Device device,
                                                 Communicator& group);

}  // namespace shardproof
