#include "sim/case/record/magnitude.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "sim/case/record/golden_record.h"

namespace shardproof::sim {
namespace {

constexpr int64_t kBlock = 512;
constexpr int64_t kLanes = 4;

// Calls use(values, count) with blocks of `tensor` as doubles.
template <class Use>
void in_blocks_of_doubles(const at::Tensor& tensor, const Use& use) {
  const int64_t count = tensor.numel();
  if (tensor.scalar_type() == at::kDouble) return use(tensor.const_data_ptr<double>(), count);
  std::array<double, kBlock> block;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, tensor.scalar_type(),
                                  "in_blocks_of_doubles", [&] {
                                    const scalar_t* data = tensor.const_data_ptr<scalar_t>();
                                    for (int64_t start = 0; start < count; start += kBlock) {
                                      const int64_t length = std::min(kBlock, count - start);
                                      for (int64_t i = 0; i < length; ++i)
                                        block[i] = static_cast<double>(data[start + i]);
                                      use(static_cast<const double*>(block.data()), length);
                                    }
                                  });
}

}  // namespace

double largest_magnitude(const at::Tensor& tensor) {
  if (!at::isFloatingType(tensor.scalar_type())) return 0;
  double largest = 0;
  in_blocks_of_doubles(tensor, [&](const double* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const double size = std::fabs(values[i]);
      if (size <= kLargestCounted && size > largest) largest = size;
    }
  });
  return largest;
}

bool all_finite(const at::Tensor& tensor) {
  if (!at::isFloatingType(tensor.scalar_type())) return true;
  bool finite = true;
  in_blocks_of_doubles(tensor, [&](const double* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) finite &= std::isfinite(values[i]);
  });
  return finite;
}

Distance distance_between(const at::Tensor& a, const at::Tensor& b) {
  SHARDPROOF_ASSERT(a.sizes() == b.sizes(), "comparing tensors of different shapes");
  const at::Tensor doubles = a.to(at::kDouble);
  const double* left = doubles.const_data_ptr<double>();
  std::array<Distance, kLanes> lanes;  // independent sums
  in_blocks_of_doubles(b, [&](const double* right, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      Distance& lane = lanes[i % kLanes];
      const double difference = right[i] - left[i], size = std::fabs(difference);
      lane.a_finite &= std::isfinite(left[i]);
      lane.b_finite &= std::isfinite(right[i]);
      if (!(size <= kLargestCounted)) continue;
      lane.largest = std::max(lane.largest, size);
      lane.square += left[i] * left[i];
      lane.along += difference * left[i];
    }
    left += count;
  });
  Distance distance;
  for (const Distance& lane : lanes) {
    distance.largest = std::max(distance.largest, lane.largest);
    distance.square += lane.square;
    distance.along += lane.along;
    distance.a_finite &= lane.a_finite;
    distance.b_finite &= lane.b_finite;
  }
  return distance;
}

}  // namespace shardproof::sim
