#include "sim/uses/recorded/own_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/case/record/magnitude.h"
#include "sim/uses/recorded/placement.h"
#include "sim/uses/recorded/state_rule.h"

namespace shardproof::sim::recorded {
namespace {

constexpr double kMostOfUpdate = 2;  // how far an update may be from the golden's: its sign is free
constexpr double kNoGradient = 1e-9;  // of the largest of its step
// Of an update that is not lost in those of its parameter.
constexpr double kRoundingsOfUpdate = 16;

// Four roundings to bfloat16, in which an optimizer may compute a norm that it divides by.
constexpr double kFactorOfRounding = 1.0 / 64;
constexpr double kUnlike = 0.25;  // the most that a factor leaves unexplained, of what it explains
constexpr int64_t kFewestOfUpdate = 4;

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

}  // namespace

bool OwnSteps::explain(const RecordedPiece& piece, const GoldenTensor& golden, const Source& source,
                       bool knows_rule, double eps, judge::ResultRow& row) {
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
  const double most = moves        ? kMostOfUpdate * update.size
                      : knows_rule ? 2 * source.allowance(golden.scale, 0)
                                   : golden.scale;
  if (!(update.error <= most) || !all_finite(piece.values)) return false;
  row.outcome = judge::Outcome::kUnresolved;
  row.reason = source.is_judged() ? "how far rounding goes through an optimizer that is not "
                                    "Adam, AdamW or SGD is not known"
                                  : source.reason;
  return true;
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

}  // namespace shardproof::sim::recorded
