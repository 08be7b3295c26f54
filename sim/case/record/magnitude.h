// Magnitudes of plain tensors, one pass each, without the thread pool of tensor ops.
#pragma once

#include <ATen/core/Tensor.h>

namespace shardproof::sim {

// Largest finite |x| <= kLargestCounted of a floating-point tensor; 0 for an integer or empty one.
// `tensor` must be contiguous and on the CPU.
double largest_magnitude(const at::Tensor& tensor);
// True when no element is NaN or infinite.
bool all_finite(const at::Tensor& tensor);
// The distance of b from a, over the elements where |a - b| is at most kLargestCounted.
struct Distance {
  double largest = 0;    // |a - b|
  double square = 0;     // <a, a>
  double along = 0;      // <b - a, a>
  bool a_finite = true;  // no element of a is NaN or infinite
  bool b_finite = true;
};
// Both must be floating-point tensors of the same shape, contiguous and on the CPU.
Distance distance_between(const at::Tensor& a, const at::Tensor& b);

}  // namespace shardproof::sim
