// The memory behind a tensor, which may go and come back while the tensor and its views stay.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace shardproof {

// Frees it: of the tensor and everything that shares it. No element may be read until it is back.
void free_memory(const at::Tensor& tensor);
// New memory for the tensor's elements, uninitialised. `tensor` starts at its storage's beginning
// and is contiguous.
void allocate_memory(const at::Tensor& tensor);
int64_t memory_bytes(const at::Tensor& tensor);  // 0 while it is freed
// Of all of them; what several share counts once, what is undefined nothing.
int64_t memory_of(const std::vector<at::Tensor>& tensors);

}  // namespace shardproof
