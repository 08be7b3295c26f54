#include "parallel/tp/blocks.h"

#include <ATen/ATen.h>

#include "collective/equal_parts.h"

namespace shardproof {

at::Tensor in_rank_order(const at::Tensor& full, int64_t dim, const std::vector<int64_t>& blocks,
                         int64_t size) {
  if (blocks.size() <= 1 || size == 1) return full;
  std::vector<at::Tensor> pieces;
  for (int64_t rank = 0; rank < size; ++rank) {
    int64_t start = 0;
    for (const int64_t block : blocks) {
      const int64_t length = divide(block, size, "a block");
      pieces.push_back(full.narrow(dim, start + rank * length, length));
      start += block;
    }
  }
  return at::cat(pieces, dim);
}

at::Tensor in_full_order(const at::Tensor& by_rank, int64_t dim, const std::vector<int64_t>& blocks,
                         int64_t size) {
  if (blocks.size() <= 1 || size == 1) return by_rank;
  const int64_t local = by_rank.size(dim) / size;
  std::vector<at::Tensor> pieces;
  int64_t start = 0;  // of the block in one rank's part
  for (const int64_t block : blocks) {
    const int64_t length = divide(block, size, "a block");
    for (int64_t rank = 0; rank < size; ++rank) {
      pieces.push_back(by_rank.narrow(dim, rank * local + start, length));
    }
    start += length;
  }
  return at::cat(pieces, dim);
}

}  // namespace shardproof
