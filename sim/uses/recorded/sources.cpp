#include "sim/uses/recorded/sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/enum_names.h"
#include "base/precision.h"
#include "sim/case/record/magnitude.h"
#include "sim/judge/diff/tolerance.h"
#include "sim/uses/recorded/placement.h"

namespace shardproof::sim::recorded {
namespace {

// A loss or gradient changes by so many times more than the parameters, both relative to their
// size, at the most. A sum that lacks one of two addends, or a factor of 2, changes more than a
// third of a gradient; so does a step that is taken from far other parameters.
constexpr double kMostSensitive = 1000;
constexpr double kPartOfScale = 1.0 / 3;

double eps_of(Dtype dtype) {
  return judge::eps_of_precision(*find_enum<Precision>(dtype_name(dtype)));
}

}  // namespace

double Source::allowance(double scale, double phase_scale) const {
  const double part =
      std::min(kMostSensitive * difference, std::max(kPartOfScale, kSensitive * difference));
  return part * scale + difference * phase_scale;
}

Sources::Sources(const RecordedRun& run, const Reference& reference)
    : run_(run), reference_(reference) {
  for (const RecordedPiece& piece : run.pieces) {
    if (reference.is_scattered()) break;  // the repeats measure what roundings make
    if (piece.kind != ObservationKind::kGradient || !is_floating(piece.values.dtype())) continue;
    const bool narrow_there =
        reference.narrow.contains(record_key(piece.phase, piece.step, piece.name));
    const bool narrow_here = piece.values.dtype() != Dtype::kFloat64;
    if (!narrow_here && !narrow_there) continue;
    const Dtype dtype = narrow_here ? piece.values.dtype() : Dtype::kFloat32;
    Narrow& narrow = narrow_[piece.step];
    if (eps_of(dtype) > narrow.eps) narrow = {eps_of(dtype), dtype_name(dtype), piece.step};
  }
}

void Sources::add_unresolved(const RecordedPiece& piece) {
  if (piece.kind == ObservationKind::kParameter)
    first_unresolved_ = std::min(first_unresolved_, piece.step);
}

Source Sources::of(const RecordedPiece& piece) {
  Source source;
  const bool of_step = piece.phase == Phase::kStep && piece.kind != ObservationKind::kGradient;
  for (auto at = narrow_.begin(); of_step && at != narrow_.end(); ++at) {
    const Narrow& narrow = at->second;
    if (at->first > piece.step || narrow.eps <= source.difference) continue;
    source = {narrow.eps, fmt::format("it differs by roundings of {}, in which gradients of step "
                                      "{} were recorded",
                                      narrow.dtype, narrow.step)};
  }
  if (piece.step <= first_unresolved_) return source;
  const double apart = parameters_apart(piece.step - 1);
  if (!(apart > source.difference)) return source;
  return {apart, fmt::format("it is computed from the parameters after step {}, of which some are "
                             "unresolved; together they are {:.2g} of their size apart from the "
                             "golden's",
                             piece.step - 1, apart)};
}

// The root of the sum of the squares of all distances, relative to that of all parameters.
double Sources::parameters_apart(int64_t step) {
  const auto [at, added] = apart_.emplace(step, 0);
  if (!added) return at->second;
  double distance = 0, size = 0, eps = 0;
  for (const RecordedPiece& piece : run_.pieces) {
    if (piece.step != step || piece.kind != ObservationKind::kParameter) continue;
    const GoldenTensor* golden = reference_.record.find(Phase::kStep, step, piece.name);
    if (!golden || golden->value.sizes() != piece.global_shape) continue;
    if (!is_floating(piece.values.dtype()) || !golden->value.holds<double>()) continue;
    const std::vector<double> values = values_as<double>(piece.values);
    const double* expected = golden->value.data<double>();
    plan_of(piece).for_each_run([&](int64_t local, int64_t global, int64_t length) {
      for (int64_t i = 0; i < length; ++i) {
        const double right = expected[global + i], apart = values[local + i] - right;
        if (std::isfinite(apart)) distance += apart * apart;
        size += right * right;
      }
    });
    if (piece.values.dtype() != Dtype::kFloat64) eps = std::max(eps, eps_of(piece.values.dtype()));
  }
  at->second = std::max(eps, size > 0 ? std::sqrt(distance / size) : 0);
  return at->second;
}

}  // namespace shardproof::sim::recorded
