// Largest magnitudes of plain tensors, one pass each, without the ops' thread pool.
#pragma once

#include <ATen/core/Tensor.h>

namespace shardproof::sim {

// Largest finite |x| <= kLargestCounted of a floating tensor; 0 for an integer or empty one.
// `tensor` is contiguous and on the CPU.
double largest_magnitude(const at::Tensor& tensor);
// True when no element is NaN or infinite.
bool all_finite(const at::Tensor& tensor);
// How far b lies from a, over the elements where |a - b| is at most kLargestCounted.
struct Distance {
  double largest = 0;     // |a - b|
  double square = 0;      // <a, a>
  double along = 0;       // <b - a, a>
  bool a_finite = true;   // no element of a is NaN or infinite
  bool b_finite = true;
};
// Both are floating tensors of the same shape, contiguous and on the CPU.
Distance distance_between(const at::Tensor& a, const at::Tensor& b);

}  // namespace shardproof::sim
