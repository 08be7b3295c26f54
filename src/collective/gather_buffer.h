// Memory for gathered tensors that is used again: the inputs that a sequence-parallel layer gathers
// in its forward, and once more in its backward, one layer after the other.
//
//   layer 1   gather -> [memory A]   product, done          A is free again
//   layer 2   gather -> [memory A]   product, saved for the backward: A stays lent
//   layer 3   gather -> [memory B]   layer 2's values are still in use
//
// Who owns the buffer gives it to his layers; there is none behind their back. Memory is in use as
// long as any tensor on it lives: a pending collective's, one that autograd saved, a view. Nobody
// has to give it back, and nobody can be given memory that another still reads or a call in flight
// still writes: then the buffer takes more.
//
// For one rank's thread. On a GPU: for tensors of one stream, whose order keeps a new gather behind
// the last use.
//
// Source: Megatron-LM parallel_state.py, get_global_memory_buffer (use_global_buffer of the
// sequence-parallel mappings, the linear layer's gather). There it is one global memory for all
// layers: a gathered tensor that is still in use, or still being written, changes with the next
// layer's gather.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace shardproof {

class GatherBuffer {
 public:
  // A contiguous tensor of arbitrary values, of `like`'s dtype and device, in memory that no living
  // tensor uses. It may be kept, also longer than the buffer.
  at::Tensor lend(at::IntArrayRef shape, const at::Tensor& like);

  int64_t count() const { return static_cast<int64_t>(memories_.size()); }  // pieces of memory
  int64_t in_use() const;                                                   // of which tensors live
  int64_t bytes() const;                                                    // of all

 private:
  std::vector<c10::Storage> memories_;
};

// Communicator::all_gather, into the buffer's memory where there is one. `buffer` may be null; of
// an axis of one rank nothing is lent, as nothing is gathered: the result is a copy.
at::Tensor all_gather_in(GatherBuffer* buffer, const at::Tensor& local, Communicator& axis,
                         int64_t dim, std::string_view label,
                         const std::vector<int64_t>& sizes = {});
PendingCollective all_gather_async_in(GatherBuffer* buffer, const at::Tensor& local,
                                      Communicator& axis, int64_t dim, std::string_view label,
                                      const std::vector<int64_t>& sizes = {});

}  // namespace shardproof
