// Magnitudes of tensors, one pass each.
#pragma once

#include <algorithm>

#include "tensor/tensor_view.h"

namespace shardproof::sim {

class IndexReader;  // golden_blob.h
class IndexWriter;

// The largest finite |x| that counts, of elements that come one by one or in parts. If several
// elements above kLargestCounted have one magnitude, they are a mask and do not count. A single
// one, or several of different magnitudes, were computed, and count.
class Magnitude {
 public:
  void add(double size);
  void add(const Magnitude& part);
  double value() const {
    return several_ && least_ == most_ ? counted_ : std::max(counted_, most_);
  }
  void put(IndexWriter& out) const;
  static Magnitude take(IndexReader& in);

 private:
  double counted_ = 0;           // of those up to kLargestCounted
  double least_ = 0, most_ = 0;  // of those above it; 0: there are none
  bool several_ = false;         // of those
};

// That of a floating-point tensor; 0 for an integer or empty one.
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
