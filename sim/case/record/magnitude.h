// Magnitudes of tensors, one pass each.
#pragma once

#include "tensor/tensor_view.h"

namespace shardproof::sim {

// Largest finite |x| of a floating-point tensor that counts; 0 for an integer or empty one. If
// several elements above kLargestCounted have one magnitude, they are a mask and do not count. A
// single one, or several of different magnitudes, were computed, and count.
double largest_magnitude(const TensorView& tensor);
// True when no element is NaN or infinite.
bool all_finite(const TensorView& tensor);
// The distance of b from a, over the elements where |a - b| is at most kLargestCounted or, if that
// is more, the largest magnitude of a.
struct Distance {
  double largest = 0;    // |a - b|
  double square = 0;     // <a, a>
  double along = 0;      // <b - a, a>
  bool a_finite = true;  // no element of a is NaN or infinite
  bool b_finite = true;
};
// Both have the same shape; `a` is float64, `b` any floating dtype.
Distance distance_between(const TensorView& a, const TensorView& b);

}  // namespace shardproof::sim
