#include "parallel/data/flat_shards.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"

namespace shardproof {

FlatShards::FlatShards(std::vector<std::vector<int64_t>> shapes, int64_t ranks)
    : shapes_(std::move(shapes)), ranks_(ranks), sizes_(static_cast<size_t>(ranks), 0) {
  for (size_t i = 0; i < shapes_.size(); ++i) {
    SHARDPROOF_ASSERT(!shapes_[i].empty(), "a parameter without dims cannot be cut");
    row_sizes_.push_back(c10::multiply_integers(shapes_[i].begin() + 1, shapes_[i].end()));
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      sizes_[static_cast<size_t>(rank)] += rows_of(i, rank).count * row_sizes_[i];
    }
  }
}

// torch.chunk: ceil(n / ranks) rows per rank; the last ranks get fewer or none.
FlatShards::Rows FlatShards::rows_of(size_t index, int64_t rank) const {
  const int64_t rows = shapes_[index][0];
  const int64_t chunk = (rows + ranks_ - 1) / ranks_;
  const int64_t first = std::min(rank * chunk, rows);
  return {first, std::min(chunk, rows - first)};
}

template <class Visit>
void FlatShards::for_each_part(const Visit& visit) const {
  int64_t offset = 0;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    for (size_t i = 0; i < shapes_.size(); ++i) {
      const Rows rows = rows_of(i, rank);
      const int64_t count = rows.count * row_sizes_[i];
      if (count > 0) visit(i, rows, offset, count);
      offset += count;
    }
  }
}

int64_t FlatShards::whole_bytes(int64_t element) const {
  return c10::sum_integers(sizes_) * element;
}

at::Tensor FlatShards::pack_shards(const std::vector<at::Tensor>& shards,
                                   at::ScalarType dtype) const {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& shard : shards) flat.push_back(shard.reshape(-1).to(dtype));
  return at::cat(flat);
}

std::vector<at::Tensor> FlatShards::split_shards(const at::Tensor& flat, int64_t rank) const {
  std::vector<at::Tensor> shards;
  int64_t offset = 0;
  for (size_t i = 0; i < shapes_.size(); ++i) {
    std::vector<int64_t> shape = shapes_[i];
    shape[0] = rows_of(i, rank).count;
    const int64_t count = shape[0] * row_sizes_[i];
    shards.push_back(flat.narrow(0, offset, count).view(shape));
    offset += count;
  }
  SHARDPROOF_ASSERT(offset == flat.numel(), "a buffer of one rank's shards");
  return shards;
}

at::Tensor FlatShards::pack_whole(const std::vector<at::Tensor>& whole,
                                  const at::TensorOptions& like) const {
  const at::Tensor flat = at::empty({whole_bytes(1)}, like);
  for_each_part([&](size_t i, Rows rows, int64_t offset, int64_t count) {
    const at::Tensor part = flat.narrow(0, offset, count);
    if (!whole[i].defined()) {
      part.zero_();
      return;
    }
    part.copy_(whole[i].narrow(0, rows.first, rows.count).reshape(-1));
  });
  return flat;
}

void FlatShards::unpack_whole(const at::Tensor& flat, const std::vector<at::Tensor>& whole) const {
  for_each_part([&](size_t i, Rows rows, int64_t offset, int64_t count) {
    const at::Tensor part = whole[i].narrow(0, rows.first, rows.count);
    part.copy_(flat.narrow(0, offset, count).view(part.sizes()));
  });
}

}  // namespace shardproof
