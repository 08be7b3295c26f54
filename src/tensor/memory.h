// The memory of a tensor, which can be freed and allocated again under the tensor and its views.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace shardproof {

// Frees the memory of the tensor and of everything that shares it. Do not read elements before
// allocate_memory.
void free_memory(const at::Tensor& tensor);
// Allocates uninitialized memory for the tensor's elements. `tensor` must be contiguous and start
// at the beginning of its storage.
void allocate_memory(const at::Tensor& tensor);
int64_t memory_bytes(const at::Tensor& tensor);  // 0 while it is freed
// The bytes of all tensors. Shared memory counts once, undefined tensors count nothing.
int64_t memory_of(const std::vector<at::Tensor>& tensors);

}  // namespace shardproof
