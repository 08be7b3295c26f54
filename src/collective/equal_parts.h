// Equal parts of a size, a flat tensor or a vocabulary over ranks.
//
//   flat chunk    [..]     -> [numel/n]   this rank's run of the elements in row-major order
//   vocabulary    ids of rank r: [r * V/n, (r + 1) * V/n)
//
// A size that does not divide throws Error(kRefused) with both numbers. (Megatron-LM silently drops
// the last numel % n elements of a flat chunk.)
//
// Source: Megatron-LM utils.py; megatron/core/utils.py, divide.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "comm/communicator.h"

namespace shardproof {

// value / parts. `what` names the value: "output_size 10 does not divide by the 4 ranks of tp".
int64_t divide(int64_t value, int64_t parts, std::string_view what, std::string_view axis = "tp");
int64_t divide(int64_t value, const Communicator& axis, std::string_view what);

// This rank's flat chunk: a view where `tensor` is contiguous.
// Strides may be any: elements count in row-major order, not in memory order. No gradient.
at::Tensor flat_chunk(const at::Tensor& tensor, const Communicator& axis);

// All ranks' flat chunks in rank order, [n * numel]: the whole flat tensor. No gradient.
at::Tensor gather_flat_chunks(const at::Tensor& chunk, Communicator& axis, std::string_view label);

struct IndexRange {
  int64_t first = 0, end = 0;  // `end` is excluded
  bool operator==(const IndexRange&) const = default;
};
constexpr IndexRange vocab_range_of_part(int64_t part_size, int64_t rank) {
  return {rank * part_size, (rank + 1) * part_size};
}
static_assert(vocab_range_of_part(3, 2) == IndexRange{6, 9});
IndexRange vocab_range_of_whole(int64_t vocab_size, int64_t rank, int64_t size);

}  // namespace shardproof
