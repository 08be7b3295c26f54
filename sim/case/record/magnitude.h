// Largest magnitudes of plain tensors, one pass each, without the ops' thread pool.
#pragma once

#include <ATen/core/Tensor.h>

namespace shardproof::sim {

// Largest finite |x| <= kLargestCounted of a floating tensor; 0 for an integer or empty one.
// `tensor` is contiguous and on the CPU.
double largest_magnitude(const at::Tensor& tensor);
// True when no element is NaN or infinite.
bool all_finite(const at::Tensor& tensor);
// Largest finite |a - b| over all elements; the shapes agree.
double largest_difference(const at::Tensor& a, const at::Tensor& b);

}  // namespace shardproof::sim
