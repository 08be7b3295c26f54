// The numbers of an integer tensor as a list.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace shardproof {

// The elements of an integer tensor of any shape and device, in row-major order. A tensor on a GPU
// is copied to the CPU, which waits for it: a pointer to its elements is not one that may be read.
std::vector<int64_t> int64_list(const at::Tensor& tensor);

}  // namespace shardproof
