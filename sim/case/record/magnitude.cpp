#include "sim/case/record/magnitude.h"

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "sim/case/record/golden_blob.h"
#include "sim/case/record/golden_record.h"

namespace shardproof::sim {

namespace {

constexpr int64_t kBlock = 512;
constexpr int64_t kLanes = 4;

// Calls use(values, count) with blocks of `tensor` as doubles.
template <class Use>
void in_blocks_of_doubles(const TensorView& tensor, const Use& use) {
  const int64_t count = tensor.numel();
  if (tensor.dtype() == Dtype::kFloat64) return use(tensor.data<double>(), count);
  std::array<double, kBlock> block;
  with_floating_dtype(tensor.dtype(), [&](auto one) {
    const auto* data = tensor.data<decltype(one)>();
    for (int64_t start = 0; start < count; start += kBlock) {
      const int64_t length = std::min(kBlock, count - start);
      for (int64_t i = 0; i < length; ++i) {
        block[static_cast<size_t>(i)] = static_cast<double>(data[start + i]);
      }
      use(static_cast<const double*>(block.data()), length);
    }
  });
}

// Over the elements where |a - b| is at most `most`; `beyond` becomes true when it is more
// somewhere.
Distance distance_within(const TensorView& a, const TensorView& b, double most, bool& beyond) {
  const double* left = a.data<double>();
  std::array<Distance, kLanes> lanes;  // independent sums
  in_blocks_of_doubles(b, [&](const double* right, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      Distance& lane = lanes[i % kLanes];
      const double difference = right[i] - left[i], size = std::fabs(difference);
      lane.a_finite &= std::isfinite(left[i]);
      lane.b_finite &= std::isfinite(right[i]);
      beyond |= size > most;
      if (!(size <= most)) continue;
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

}  // namespace

void Magnitude::add(double size) {
  if (size <= kLargestCounted) {
    counted_ = std::max(counted_, size);
  } else if (std::isfinite(size)) {
    several_ = most_ > 0;
    least_ = several_ ? std::min(least_, size) : size;
    most_ = std::max(most_, size);
  }
}

void Magnitude::add(const Magnitude& part) {
  counted_ = std::max(counted_, part.counted_);
  if (part.most_ == 0) return;
  several_ = part.several_ || most_ > 0;
  least_ = most_ > 0 ? std::min(least_, part.least_) : part.least_;
  most_ = std::max(most_, part.most_);
}

void Magnitude::put(IndexWriter& out) const {
  for (const double one : {counted_, least_, most_}) out.put(one);
  out.put(static_cast<int8_t>(several_));
}

Magnitude Magnitude::take(IndexReader& in) {
  Magnitude magnitude;
  for (double* one : {&magnitude.counted_, &magnitude.least_, &magnitude.most_}) {
    *one = in.take<double>();
  }
  magnitude.several_ = in.take<int8_t>() != 0;
  return magnitude;
}

double largest_magnitude(const TensorView& tensor) {
  if (!is_floating(tensor.dtype())) return 0;
  double largest = 0;
  bool huge = false;
  in_blocks_of_doubles(tensor, [&](const double* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const double size = std::fabs(values[i]);
      if (size <= kLargestCounted && size > largest) largest = size;
      huge |= size > kLargestCounted;
    }
  });
  if (!huge) return largest;
  Magnitude magnitude;
  in_blocks_of_doubles(tensor, [&](const double* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) magnitude.add(std::fabs(values[i]));
  });
  return magnitude.value();
}

bool all_finite(const TensorView& tensor) {
  if (!is_floating(tensor.dtype())) return true;
  bool finite = true;
  in_blocks_of_doubles(tensor, [&](const double* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) finite &= std::isfinite(values[i]);
  });
  return finite;
}

Distance distance_between(const TensorView& a, const TensorView& b) {
  SHARDPROOF_ASSERT(a.sizes() == b.sizes(), "comparing tensors of different shapes");
  bool beyond = false;
  const Distance distance = distance_within(a, b, kLargestCounted, beyond);
  if (!beyond) return distance;
  const double most = largest_magnitude(a);
  return most > kLargestCounted ? distance_within(a, b, most, beyond) : distance;
}

namespace {

// Of each of so many equal parts, the sum of |a - b|^2 over elements where that is finite.
std::vector<double> squares_apart(const TensorView& a, const TensorView& b, int64_t parts) {
  const double* left = a.data<double>();
  std::vector<double> sums(static_cast<size_t>(parts));
  const int64_t length = a.numel() / parts;
  int64_t at = 0;
  in_blocks_of_doubles(b, [&](const double* right, int64_t count) {
    for (int64_t start = 0; start < count;) {
      const int64_t end = std::min(count, start + length - at % length);
      std::array<double, kLanes> lanes{};
      for (int64_t i = start; i < end; ++i) {
        const double difference = right[i] - left[at + i - start];
        lanes[i % kLanes] += difference * difference;
      }
      sums[static_cast<size_t>(at / length)] += std::accumulate(lanes.begin(), lanes.end(), 0.0);
      at += end - start;
      start = end;
    }
  });
  return sums;
}

void widen_squares(const TensorView& value, const TensorView& member, GoldenFacts& facts) {
  const bool are_samples = facts.token_dims && facts.rows.empty() && value.dim() > 0;
  const int64_t parts = are_samples ? value.sizes().front() : 1;
  if (value.numel() == 0) return;
  const std::vector<double> sums = squares_apart(value, member, parts);
  facts.square_scatters.resize(sums.size());
  for (size_t part = 0; part < sums.size(); ++part) {
    double& largest = facts.square_scatters[part];
    largest = std::isfinite(sums[part]) ? std::max(largest, sums[part])
                                        : std::numeric_limits<double>::infinity();
  }
}

void widen(const TensorView& value, const TensorView* member, GoldenFacts& facts) {
  const Distance distance = member ? distance_between(value, *member) : Distance{};
  if (!member || (distance.a_finite && !distance.b_finite)) {
    facts.scatter = facts.factor_scatter = std::numeric_limits<double>::infinity();
    facts.square_scatters.clear();
    return;
  }
  facts.scatter = std::max(facts.scatter, distance.largest);
  facts.square = distance.square;
  if (std::isfinite(facts.scatter)) widen_squares(value, *member, facts);
  if (distance.square > 0) {
    facts.factor_scatter =
        std::max(facts.factor_scatter, std::fabs(distance.along / distance.square));
  }
}

}  // namespace

void add_member(const TensorView& value, const TensorView* member, GoldenFacts& facts) {
  widen(value, member, facts);
  if (++facts.members > kFewMembers) return;
  facts.few_scatter = facts.scatter;
  facts.few_factor_scatter = facts.factor_scatter;
  facts.few_square_scatters = facts.square_scatters;
}

}  // namespace shardproof::sim
