// Features of a fused linear layer: blocks (gate | up, or q | k | v), each cut evenly over ranks.
//
//   blocks {6, 6}, 3 ranks    full order    0 1 2 3 4 5 | 6 7 8 9 10 11
//                             rank order    0 1 6 7 | 2 3 8 9 | 4 5 10 11
//
// Source: Megatron-LM layers.py, partition_stride.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace shardproof {

// Reorders a dim from the full order to rank after rank, and back. Differentiable, without
// communication. With at most one block they return the tensor itself. Throws Error(kRefused) with
// both numbers when `size` does not divide a block.
at::Tensor in_rank_order(const at::Tensor& full, int64_t dim, const std::vector<int64_t>& blocks,
                         int64_t size);
at::Tensor in_full_order(const at::Tensor& by_rank, int64_t dim, const std::vector<int64_t>& blocks,
                         int64_t size);

}  // namespace shardproof
