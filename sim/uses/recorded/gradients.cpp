#include "sim/uses/recorded/gradients.h"

#include <cmath>

#include "sim/uses/recorded/placement.h"

namespace shardproof::sim::recorded {
namespace {

constexpr double kRounding = 1e-9;  // of the tensor's largest value, in float64

}  // namespace

std::vector<Gradient> gradients_of(const RecordedRun& run, const Reference& reference,
                                   int64_t step) {
  std::vector<Gradient> found;
  for (const RecordedPiece& piece : run.pieces) {
    if (piece.step != step || !piece.name.starts_with(kGradient)) continue;
    const GoldenTensor* golden = reference.record.find(piece.phase, step, piece.name);
    if (!golden || golden->value.sizes() != piece.global_shape || !piece.partial_axes.empty() ||
        !piece.values.holds<double>() || !golden->value.holds<double>()) {
      continue;
    }
    Gradient one{&piece, golden, {}, {}};
    const double* actual = piece.values.data<double>();
    const double* expected = golden->value.data<double>();
    plan_of(piece).for_each_run([&](int64_t local, int64_t global, int64_t length) {
      one.actual.insert(one.actual.end(), actual + local, actual + local + length);
      one.expected.insert(one.expected.end(), expected + global, expected + global + length);
    });
    found.push_back(std::move(one));
  }
  return found;
}

bool Gradient::is_right(const std::vector<double>& values) const {
  const double rounding = kRounding * golden->scale;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!(std::abs(values[i] - expected[i]) <= rounding)) return false;
  }
  return true;
}

}  // namespace shardproof::sim::recorded
