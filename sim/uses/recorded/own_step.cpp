#include "sim/uses/recorded/own_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/enum_names.h"
#include "base/precision.h"
#include "observe/observation_kind.h"
#include "sim/case/record/magnitude.h"
#include "sim/judge/diff/factor_sums.h"
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

constexpr double kMostOfUpdate = 2;  // how far an update may be from the golden's: its sign is free
constexpr double kNoGradient = 1e-9;  // of the largest of its step
// Of an update that is not lost in those of its parameter.
constexpr double kRoundingsOfUpdate = 16;

// Four roundings to bfloat16, in which an optimizer may compute a norm that it divides by.
constexpr double kFactorOfRounding = 1.0 / 64;
constexpr double kUnlike = 0.25;  // the most that a factor leaves unexplained, of what it explains
constexpr int64_t kFewestOfUpdate = 4;

// A step that takes the same gradient elsewhere. An element counts whose gradient is more than
// roundings.
constexpr double kLeastAlike = 0.25;
constexpr int64_t kFewestAlike = 16;
constexpr double kSameGradient = 1e-9, kNotRounding = 1e-6;  // of the gradient's largest element

// How a rank's part of a parameter moved in a step, or what a state has become, beside the
// reference's: u' and u.
struct Update {
  double error = 0;     // the largest |u' - u|
  double size = 0;      // the largest |u| of the whole tensor
  double factor = 1;    // the best f of u' = f * u
  double unlike = 0;    // |u' - f * u|
  double expected = 0;  // |u|
  int64_t count = 0;    // elements with u != 0

  // Whether u' is u times a number that is not 1, which no rounding of single elements makes.
  // `source` is what the step is computed from.
  bool has_other_factor(const Source& source) const;
};

bool Update::has_other_factor(const Source& source) const {
  const double off = std::fabs(factor - 1);
  const double least = std::max(kFactorOfRounding, source.least_of_other());
  return count >= kFewestOfUpdate && off > least && unlike <= kUnlike * off * expected;
}

double largest_of(const TensorView& values) {
  double largest = 0;
  for (const double value : values_as<double>(values))
    largest = std::fmax(largest, std::fabs(value));
  return largest;
}

// `before` and `golden_before` are null for a state, which counts from 0.
Update update_of(const RecordedPiece& now, const RecordedPiece* before, const GoldenTensor& golden,
                 const GoldenTensor* golden_before) {
  Update update;
  update.size =
      golden_before ? distance_between(golden.value, golden_before->value).largest : golden.scale;
  const std::vector<double> values = values_as<double>(now.values);
  const std::vector<double> then =
      before ? values_as<double>(before->values) : std::vector<double>(values.size());
  const double* right = golden.value.data<double>();
  const double* right_then = golden_before ? golden_before->value.data<double>() : nullptr;
  double square = 0, both = 0;
  plan_of(now).for_each_run([&](int64_t local, int64_t global, int64_t length) {
    for (int64_t i = 0; i < length; ++i) {
      const double here = values[local + i] - then[local + i];
      const double there = right[global + i] - (right_then ? right_then[global + i] : 0);
      update.error = std::fmax(update.error, std::fabs(here - there));
      update.count += there != 0;
      update.expected += there * there;
      both += here * there;
      square += here * here;
    }
  });
  if (update.expected > 0) update.factor = both / update.expected;
  update.unlike = std::sqrt(std::fmax(0, square - update.factor * update.factor * update.expected));
  update.expected = std::sqrt(update.expected);
  return update;
}

constexpr int64_t kFewestToFit = 4;      // elements
constexpr double kRoundingOfFit = 1e-9;  // of the state's largest value
constexpr double kLeastIndependent = 1e-9;

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

bool OwnSteps::explain(const RecordedPiece& piece, const GoldenTensor& golden, const Source& source,
                       bool knows_rule, bool is_repeated, double eps, judge::ResultRow& row) {
  const std::string grad_name =
      observed_name(ObservationKind::kGradient, parameter_of(golden.kind, golden.name));
  const GoldenTensor* grad = reference_.record.find(Phase::kStep, golden.step, grad_name);
  if (!grad || !golden.value.holds<double>()) return false;
  const bool moves = golden.kind == ObservationKind::kParameter;
  const RecordedPiece* then = moves ? own(piece, piece.step - 1, piece.name) : nullptr;
  const GoldenTensor* golden_before =
      moves ? reference_.record.find(Phase::kStep, golden.step - 1, golden.name) : nullptr;
  if (moves && (!then || !golden_before)) return false;
  if (moves && golden_before->value.sizes() != golden.value.sizes()) return false;
  if (!moves && breaks_rule(piece, golden)) {
    row.problem = fmt::format(
        "it does not follow from what the rank had after step {} and its gradient of step {}: "
        "states were lost, exchanged or changed between these steps",
        piece.step - 1, piece.step);
    return false;
  }
  const Update update = update_of(piece, then, golden, golden_before);
  // Of a gradient that is 0 but for roundings, an update has any size.
  const bool has_gradient = grad->scale > kNoGradient * phase_scale_of(reference_, *grad);
  const bool is_coarse = kRoundingsOfUpdate * eps * golden.scale > update.size;
  if (has_gradient && !is_coarse && update.has_other_factor(source)) {
    row.problem = moves ? fmt::format(
                              "moved by {:.3g} x the golden's update of this step: the learning "
                              "rate, or another setting of the optimizer, is wrong",
                              update.factor)
                        : fmt::format("every element is {:.3g} x golden, or nearly", update.factor);
    return false;
  }
  if (moves && !knows_rule && has_gradient && !is_coarse && source.is_judged()) {
    const auto correlation = alike(piece, *then, golden, *golden_before, *grad);
    if (correlation && !(*correlation >= kLeastAlike)) {
      row.problem = fmt::format(
          "it has the golden's gradient and moved elsewhere: its update of this step and the "
          "golden's have a correlation of {:.2g}",
          *correlation);
      return false;
    }
  }
  // An optimizer that divides by the gradient's size makes roundings as large as any update. Where
  // the gradient is exactly 0 here and in the golden there are none.
  const auto has_rounding = [&] {
    const RecordedPiece* own_grad = own(piece, piece.step, grad_name);
    return grad->scale > 0 || (own_grad != nullptr && largest_of(own_grad->values) > 0);
  };
  const bool is_rounding = !knows_rule && !has_gradient && has_rounding();
  // Repeats of the reference tell how far rounding goes, but for a gradient that is nothing else.
  if (is_repeated && !knows_rule && !is_rounding && source.is_judged()) return false;
  const double size = is_rounding ? largest_update(golden.step) : update.size;
  const double most = moves        ? kMostOfUpdate * size
                      : knows_rule ? 2 * source.allowance(golden.scale, 0)
                                   : golden.scale;
  if (!(update.error <= most) || !all_finite(piece.values)) return false;
  row.outcome = judge::Outcome::kUnresolved;
  row.reason = is_rounding && moves && source.is_judged()
                   ? "its gradient is 0 but for roundings, which an optimizer that is not Adam, "
                     "AdamW or SGD may make as large as any update"
               : source.is_judged() ? "how far rounding goes through an optimizer that is not "
                                      "Adam, AdamW or SGD is not known"
                                    : source.reason;
  return true;
}

std::optional<double> OwnSteps::alike(const RecordedPiece& now, const RecordedPiece& before,
                                      const GoldenTensor& golden, const GoldenTensor& golden_before,
                                      const GoldenTensor& grad) {
  const RecordedPiece* own_grad = own(now, now.step, grad.name);
  if (!own_grad || !grad.value.holds<double>() || !own_grad->partial_axes.empty() ||
      grad.value.sizes() != golden.value.sizes()) {
    return std::nullopt;
  }
  const std::vector<double> values = values_as<double>(now.values),
                            then = values_as<double>(before.values),
                            gradients = values_as<double>(own_grad->values);
  const double *right = golden.value.data<double>(),
               *right_then = golden_before.value.data<double>(),
               *right_grad = grad.value.data<double>();
  bool is_same = true;
  judge::FactorSums updates;
  int64_t count = 0;
  plan_of(now).for_each_run([&](int64_t local, int64_t global, int64_t length) {
    for (int64_t i = 0; i < length; ++i) {
      const double g = right_grad[global + i];
      is_same = is_same && std::fabs(gradients[local + i] - g) <= kSameGradient * grad.scale;
      if (!(std::fabs(g) > kNotRounding * grad.scale)) continue;
      updates.add(values[local + i] - then[local + i], right[global + i] - right_then[global + i]);
      ++count;
    }
  });
  const double size = std::sqrt(updates.actual * updates.golden);
  if (!is_same || count < kFewestAlike || !(size > 0)) return std::nullopt;
  return updates.product / size;
}

double OwnSteps::largest_update(int64_t step) {
  const auto [at, is_new] = largest_updates_.emplace(step, 0);
  if (!is_new) return at->second;
  for (const GoldenTensor& tensor : reference_.record.tensors()) {
    if (tensor.step != step || tensor.kind != ObservationKind::kParameter) continue;
    const GoldenTensor* before = reference_.record.find(Phase::kStep, step - 1, tensor.name);
    if (!before || before->value.sizes() != tensor.value.sizes()) continue;
    at->second = std::fmax(at->second, distance_between(tensor.value, before->value).largest);
  }
  return at->second;
}

const RecordedPiece* OwnSteps::own(const RecordedPiece& piece, int64_t step,
                                   const std::string& name) {
  if (stepped_.empty()) {
    for (const RecordedPiece& one : run_.pieces) {
      if (one.kind == ObservationKind::kGradient || is_stepped(one.kind))
        stepped_[{one.rank, one.step, one.name}].push_back(&one);
    }
  }
  const auto found = stepped_.find({piece.rank, step, name});
  if (found == stepped_.end()) return nullptr;
  for (const RecordedPiece* one : found->second) {
    if (one->place == piece.place && one->shape == piece.shape) return one;
  }
  return nullptr;
}

// The share of the gradient may be another one, as clipping by an unresolved norm makes it.
bool OwnSteps::breaks_rule(const RecordedPiece& piece, const GoldenTensor& golden) {
  constexpr double kRoundingOfStep = 1e-7;  // of the state's largest value
  const std::string gradient =
      observed_name(ObservationKind::kGradient, parameter_of(golden.kind, golden.name));
  const RecordedPiece* then = own(piece, piece.step - 1, piece.name);
  const RecordedPiece* grad = own(piece, piece.step, gradient);
  for (const RecordedPiece* one : {&piece, then, grad}) {
    if (!one || !one->values.holds<double>() || !one->partial_axes.empty()) return false;
  }
  const std::optional<StateRule> rule = rule_of_state(reference_.record, golden);
  if (!rule) return false;
  const double* values = piece.values.data<double>();
  const double *before = then->values.data<double>(), *gradients = grad->values.data<double>();
  const int64_t size = piece.values.numel();
  double both = 0, square = 0;
  for (int64_t i = 0; i < size; ++i) {
    const double g = rule->of(gradients[i]);
    both += (values[i] - rule->kept * before[i]) * g;
    square += g * g;
  }
  double added = square > 0 ? both / square : rule->added;
  if (!(added / rule->added > 0.5 && added / rule->added < 2)) added = rule->added;
  double left = 0;
  for (int64_t i = 0; i < size; ++i) {
    const double made = rule->kept * before[i] + added * rule->of(gradients[i]);
    left = std::fmax(left, std::fabs(values[i] - made));
  }
  return left > kRoundingOfStep * golden.scale;
}

std::optional<StateRule> rule_of_state(const GoldenRecord& golden, const GoldenTensor& state) {
  const GoldenTensor* before = golden.find(Phase::kStep, state.step - 1, state.name);
  const GoldenTensor* gradient =
      golden.find(Phase::kStep, state.step,
                  observed_name(ObservationKind::kGradient, parameter_of(state.kind, state.name)));
  const int64_t size = state.value.numel();
  for (const GoldenTensor* one : {&state, before, gradient}) {
    if (!one || !one->value.holds<double>() || one->value.numel() != size) return std::nullopt;
  }
  if (size < kFewestToFit) return std::nullopt;
  const double *now = state.value.data<double>(), *then = before->value.data<double>(),
               *grad = gradient->value.data<double>();
  for (const bool squares : {false, true}) {
    StateRule rule{.squares = squares};
    double tt = 0, gg = 0, tg = 0, nt = 0, ng = 0;  // sums of products
    for (int64_t i = 0; i < size; ++i) {
      const double g = rule.of(grad[i]);
      tt += then[i] * then[i];
      gg += g * g;
      tg += then[i] * g;
      nt += now[i] * then[i];
      ng += now[i] * g;
    }
    const double both = tt * gg - tg * tg;
    if (!(both > kLeastIndependent * tt * gg)) continue;
    rule.kept = (nt * gg - ng * tg) / both;
    rule.added = (ng * tt - nt * tg) / both;
    double left = 0;
    for (int64_t i = 0; i < size; ++i) {
      const double made = rule.kept * then[i] + rule.added * rule.of(grad[i]);
      left = std::fmax(left, std::fabs(now[i] - made));
    }
    if (left <= kRoundingOfFit * state.scale && rule.kept != 0 && rule.added != 0) return rule;
  }
  return std::nullopt;
}

}  // namespace shardproof::sim::recorded
