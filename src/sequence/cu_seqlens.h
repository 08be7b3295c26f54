// Sequence boundaries of a packed row: [N+1] numbers from 0, as tensors and as lists.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace shardproof {

// lengths {3, 1, 0} -> {0, 3, 4, 4}. Each length is first rounded up to a multiple of `multiple`.
// Throws Error(kBadInput) for a negative length, and for a sum that exceeds int64.
std::vector<int64_t> cu_seqlens_of(const std::vector<int64_t>& lengths, int64_t multiple = 1);

// Throws Error(kBadInput), which calls the list by its name, for no entry, a first entry other than
// 0, and a decreasing entry.
void check_cu_seqlens(const std::vector<int64_t>& cu, const char* name);

// The list of an int32 or int64 tensor [N+1] on any device. Throws Error(kBadInput) for another
// dtype or shape, no entry, a first entry other than 0, a decreasing entry, and a last entry other
// than `num_positions` (-1: any).
std::vector<int64_t> read_cu_seqlens(const at::Tensor& cu_seqlens, int64_t num_positions = -1);

}  // namespace shardproof
