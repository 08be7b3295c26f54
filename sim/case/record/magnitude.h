// Magnitudes of tensors, one pass each.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sim/case/record/golden_record.h"
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

// How far the members of a golden's ensemble scatter: runs in a lower precision that differ by
// roundings, as correct sharded runs do.

// Members of an ensemble in a lower precision beside the unperturbed run. With so many, a correct
// run whose error has the same distribution exceeds kScatters times the largest in less than one of
// 10^8 scalars (sim/judge/diff/tolerance.h).
inline constexpr int64_t kPerturbed = 16;

// The unperturbed run and the first of the others. Allowances only grow with more members, so a
// tensor that is right by these is right by all, and the others are computed for what is not.
inline constexpr int64_t kFewMembers = 2;

// Widens the three scatters of GoldenFacts by one member, and those of few members by the first.
// `value` is the tensor itself as
// float64; `member` has its shape, or is null where the member has no such tensor, because it skips
// another step.
void add_member(const TensorView& value, const TensorView* member, GoldenFacts& facts);

}  // namespace shardproof::sim
