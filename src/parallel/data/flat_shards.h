// The positions of one unit's parameters in the flat buffers of its collectives.
//
//   two parameters, [5, 2] and [1], over three ranks; torch.chunk's rule, nothing padded
//
//   rank 0    rows 0 1 of the first, the second     2*2 + 1 elements
//   rank 1    rows 2 3 of the first                 2*2
//   rank 2    row 4 of the first                    1*2
//
//   buffer    rank 0's elements, then rank 1's, then rank 2's, as all_gather concatenates them
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace shardproof {

class FlatShards {
 public:
  // `shapes` are those of the whole parameters, each with at least one dim.
  FlatShards(std::vector<std::vector<int64_t>> shapes, int64_t ranks);

  // Elements of each rank's part of a buffer.
  const std::vector<int64_t>& sizes() const { return sizes_; }
  // Bytes of all whole parameters at `element` bytes per element.
  int64_t whole_bytes(int64_t element) const;

  // One rank's shards, flat, one after another in `dtype`: [sizes()[rank]].
  at::Tensor pack_shards(const std::vector<at::Tensor>& shards, at::ScalarType dtype) const;
  // Views of such a buffer as the shards of `rank`.
  std::vector<at::Tensor> split_shards(const at::Tensor& flat, int64_t rank) const;
  // A buffer of all ranks' parts from whole tensors, cast to `like`'s dtype; zeros if undefined.
  at::Tensor pack_whole(const std::vector<at::Tensor>& whole, const at::TensorOptions& like) const;
  // Writes a buffer of all ranks' parts into whole tensors.
  void unpack_whole(const at::Tensor& flat, const std::vector<at::Tensor>& whole) const;

 private:
  struct Rows {
    int64_t first, count;
  };
  Rows rows_of(size_t index, int64_t rank) const;
  template <class Visit>  // visit(parameter, rows, offset in the buffer of all ranks, elements)
  void for_each_part(const Visit& visit) const;

  std::vector<std::vector<int64_t>> shapes_;
  std::vector<int64_t> row_sizes_;  // elements of one row of each parameter
  int64_t ranks_;
  std::vector<int64_t> sizes_;
};

}  // namespace shardproof
