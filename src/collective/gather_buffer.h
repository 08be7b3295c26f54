// Reused memory for gathered tensors: a sequence-parallel layer gathers its inputs in its forward
// and again in its backward, one layer after the other.
//
//   layer 1   gather -> [memory A]   product, done          A is free again
//   layer 2   gather -> [memory A]   product, saved for the backward: A stays lent
//   layer 3   gather -> [memory B]   layer 2's values are still in use
//
// The owner of the buffer passes it to the layers; nothing uses it implicitly. Memory is in use
// while any tensor on it exists: that of a pending collective, one that autograd saved, or a view.
// No caller has to return it, and the buffer never lends memory that another still reads, or that a
// call in flight still writes: it allocates more.
//
// For the thread of one rank. On a GPU: for tensors of one stream, whose order puts a new gather
// after the last use.
//
// Source: Megatron-LM parallel_state.py, get_global_memory_buffer (use_global_buffer of the
// sequence-parallel mappings, the linear layer's gather). There one global memory serves all
// layers: the next layer's gather overwrites a gathered tensor that is still in use, or still being
// written.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace shardproof {

class GatherBuffer {
 public:
  // A contiguous tensor of undefined values, with `like`'s dtype and device, in memory that no
  // other tensor uses. It may outlive the buffer.
  at::Tensor lend(at::IntArrayRef shape, const at::Tensor& like);

  int64_t count() const { return static_cast<int64_t>(memories_.size()); }  // pieces of memory
  int64_t in_use() const;                                                   // those with tensors
  int64_t bytes() const;                                                    // of all

 private:
  std::vector<c10::Storage> memories_;
};

// Communicator::all_gather into memory of `buffer`, which may be null. On an axis of one rank the
// result is a copy, and nothing is lent.
at::Tensor all_gather_in(GatherBuffer* buffer, const at::Tensor& local, Communicator& axis,
                         int64_t dim, std::string_view label,
                         const std::vector<int64_t>& sizes = {});
PendingCollective all_gather_async_in(GatherBuffer* buffer, const at::Tensor& local,
                                      Communicator& axis, int64_t dim, std::string_view label,
                                      const std::vector<int64_t>& sizes = {});

}  // namespace shardproof
