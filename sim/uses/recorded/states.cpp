// The cause of a wrong state of an optimizer.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>

#include "sim/judge/diff/factor_sums.h"
#include "sim/uses/recorded/clue.h"
#include "sim/uses/recorded/gradients.h"
#include "sim/uses/recorded/own_step.h"
#include "sim/uses/recorded/placement.h"

namespace shardproof::sim::recorded {
namespace {

constexpr double kMultiple = 1e-6;  // relative distance of a state from a multiple of a gradient
// Of the tensor's largest value: its gradients may have gone through float32.
constexpr double kRoundingOfState = 1e-6;
constexpr size_t kFewestOfState = 4;

// The elements of a state's wrong pieces: their places in the whole tensor and their values.
struct WrongPart {
  std::vector<size_t> places;
  std::vector<double> values;
};

WrongPart wrong_part(const std::vector<Gradient>& pieces) {
  WrongPart part;
  for (const Gradient& one : pieces) {
    if (one.is_right()) continue;
    part.values.insert(part.values.end(), one.actual.begin(), one.actual.end());
    plan_of(*one.piece).for_each_run([&](int64_t, int64_t global, int64_t length) {
      for (int64_t i = 0; i < length; ++i) part.places.push_back(static_cast<size_t>(global + i));
    });
  }
  return part;
}

// The part as a multiple of other values; 0 when it is none.
double multiple_of(const WrongPart& part, const std::function<double(size_t)>& other) {
  judge::FactorSums sums;
  for (size_t i = 0; i < part.values.size(); ++i) sums.add(part.values[i], other(part.places[i]));
  return part.values.size() >= kFewestOfState && sums.fits(kMultiple) ? sums.factor() : 0;
}

// Moments begin from 0, and a first step makes them a share of the gradient or of its square.
std::string began_anew(const WrongPart& part, const GoldenTensor* gradient, int64_t step) {
  if (step < 2 || !gradient || !gradient->value.holds<double>()) return "";
  const auto size = static_cast<size_t>(gradient->value.numel());
  if (std::ranges::any_of(part.places, [size](size_t at) { return at >= size; })) return "";
  const double* values = gradient->value.data<double>();
  const double of_gradient = multiple_of(part, [&](size_t at) { return values[at]; });
  const double of_square = multiple_of(part, [&](size_t at) { return values[at] * values[at]; });
  const bool is_first = of_gradient > 0 && of_gradient <= 1 + kMultiple;
  if (!is_first && !(of_square > 0 && of_square <= 1 + kMultiple)) return "";
  return fmt::format(
      "it is {:.6g} x the {} of step {} alone, as after a first step: the optimizer began from "
      "empty states there, which were lost or made anew, or it made no step before",
      is_first ? of_gradient : of_square, is_first ? "gradient" : "square of the gradient", step);
}

// The moment of a gradient, or of its square, that was multiplied by the clip coefficient.
std::string clipped_otherwise(const RecordedRun& run, const Reference& reference,
                              const WrongPart& part, const GoldenTensor& golden) {
  constexpr double kSame = 1e-4;
  const double coefficient = clip_coefficient(run, reference, golden.step);
  if (coefficient == 1 || !golden.value.holds<double>()) return "";
  const double* values = golden.value.data<double>();
  const double factor = multiple_of(part, [&](size_t at) { return values[at]; });
  const bool is_square = golden.kind == ObservationKind::kExpAvgSq;
  const double of_gradient = is_square ? std::sqrt(std::fmax(factor, 0)) : factor;
  const auto is = [&](double due) { return std::fabs(of_gradient - due) <= kSame * due; };
  if (!is(coefficient) && !is(1 / coefficient)) return "";
  const bool was_clipped = reference.record.find(Phase::kStep, golden.step, kClipCoefficient);
  return fmt::format("it is that of gradients times {:.6g}, {} the clip coefficient of step {}: {}",
                     of_gradient, is(coefficient) ? "which is" : "1 over", golden.step,
                     !is(coefficient) ? "they were not clipped"
                     : was_clipped    ? "they were clipped twice"
                                      : "they were clipped, and the reference's were not");
}

std::vector<double> values_of(const GoldenTensor& golden) {
  const double* values = golden.value.data<double>();
  return {values, values + golden.value.numel()};
}

// The b of state = b * before + (1 - b) * made, the values of a moment after a step; unset where
// none fits.
std::optional<double> beta_of(const WrongPart& part, const std::vector<double>& before,
                              const std::vector<double>& made) {
  judge::FactorSums sums;
  for (size_t i = 0; i < part.values.size(); ++i) {
    const size_t at = part.places[i];
    sums.add(part.values[i] - made[at], before[at] - made[at]);
  }
  if (part.values.size() < kFewestOfState || !sums.fits(kMultiple)) return std::nullopt;
  return sums.factor();
}

WrongPart whole_of(const std::vector<double>& values) {
  WrongPart all{std::vector<size_t>(values.size()), values};
  std::iota(all.places.begin(), all.places.end(), size_t{0});
  return all;
}

// A moment of the right gradients, kept by another share. The other moment of the parameter must be
// right, since a gradient that was scaled makes both wrong.
std::string other_beta(const RecordedRun& run, const Reference& reference, const WrongPart& part,
                       const GoldenTensor& golden, const GoldenTensor* gradient,
                       const std::vector<int64_t>& ranks) {
  constexpr double kSame = 1e-6;
  const bool squares = golden.kind == ObservationKind::kExpAvgSq;
  if ((!squares && golden.kind != ObservationKind::kExpAvg) || !gradient) return "";
  const GoldenTensor* then = reference.record.find(Phase::kStep, golden.step - 1, golden.name);
  if (!then && (golden.step > 1 || run.from_step > 0)) return "";
  for (const GoldenTensor* one : {&golden, gradient, then}) {
    if (one && (!one->value.holds<double>() || one->value.numel() != golden.value.numel()))
      return "";
  }
  const std::string sibling =
      observed_name(squares ? ObservationKind::kExpAvg : ObservationKind::kExpAvgSq,
                    parameter_of(golden.kind, golden.name));
  const std::vector<Gradient> others =
      pieces_beside(run, reference, golden.step, [&](const RecordedPiece& piece) {
        return piece.name == sibling && std::ranges::count(ranks, piece.rank) > 0;
      });
  const auto is_right = [](const Gradient& one) { return one.is_right(); };
  if (others.empty() || !std::ranges::all_of(others, is_right)) return "";
  const std::vector<double> before =
      then ? values_of(*then) : std::vector<double>(golden.value.numel());
  std::vector<double> made = values_of(*gradient);
  for (double& one : made) one *= squares ? one : 1;
  const auto here = beta_of(part, before, made);
  const auto due = beta_of(whole_of(values_of(golden)), before, made);
  if (!here || !due || !(*here >= 0) || !(*here < 1) || std::fabs(*here - *due) <= kSame) return "";
  // A first step makes a share of the gradient, and so does a factor of a sum over ranks.
  const double factor = (1 - *here) / (1 - *due), times = std::fmax(factor, 1 / factor);
  const bool is_first = std::ranges::all_of(before, [](double value) { return value == 0; });
  const bool is_of_ranks = times <= static_cast<double>(run.world_size) + kSame;
  if (is_first && is_of_ranks && std::fabs(times - std::round(times)) <= kSame * times) return "";
  return fmt::format(
      "it keeps {:.6g} of what it was before the step, and the reference's {:.6g}: {} of this "
      "optimizer is another one",
      *here, *due, squares ? "beta2" : "beta1");
}

constexpr int64_t kMostShifts = 64;  // that one value may show

// How many values equal the reference's after the shift, and how many do not. At the end of a flat
// buffer those of its neighbors come in, so some need not. Zeros tell nothing.
struct Shifted {
  size_t equal = 0, other = 0;
};

// Ends early where too many do not.
Shifted count_shifted(const WrongPart& part, const std::vector<double>& whole, int64_t shift,
                      double rounding) {
  const size_t most = part.values.size() / 4 + kFewestOfState;
  const auto size = static_cast<int64_t>(whole.size());
  Shifted count;
  for (size_t i = 0; i < part.values.size() && count.other <= most; ++i) {
    const int64_t from = static_cast<int64_t>(part.places[i]) + shift;
    if (from < 0 || from >= size || (part.values[i] == 0 && whole[from] == 0)) continue;
    ++(std::fabs(part.values[i] - whole[from]) <= rounding ? count.equal : count.other);
  }
  return count;
}

// `whole`: the values of which it may hold another part; `scale`: the largest of them.
std::string at_another_place(const WrongPart& part, const std::vector<double>& whole, double scale,
                             const std::string& values_are, const std::string& step) {
  if (part.values.size() < kFewestOfState) return "";
  const auto size = static_cast<int64_t>(whole.size());
  const double rounding = kRoundingOfState * scale;
  // Some of them lie at the ends of buffers.
  for (const size_t probe : {part.values.size() / 2, part.values.size() / 3, part.values.size() / 4,
                             3 * part.values.size() / 4}) {
    if (std::fabs(part.values[probe]) <= rounding) continue;
    int64_t tried = 0;  // a value that many others equal tells nothing
    for (int64_t from = 0; from < size && tried < kMostShifts; ++from) {
      const int64_t shift = from - static_cast<int64_t>(part.places[probe]);
      if (shift == 0 || !(std::fabs(part.values[probe] - whole[from]) <= rounding)) continue;
      ++tried;
      const Shifted count = count_shifted(part, whole, shift, rounding);
      if (count.equal < kFewestOfState || count.equal < 3 * count.other) continue;
      return fmt::format(
          "its values are {} {} elements {}{} in row-major order: it was cut from another place of "
          "a flat buffer, as where only one side counts the padding ({} of {} values)",
          values_are, std::abs(shift), shift > 0 ? "further on" : "further back", step, count.equal,
          count.equal + count.other);
    }
  }
  return "";
}

// A whole tensor as the run recorded it, with the reference's values where it did not.
std::vector<double> as_recorded(const RecordedRun& run, const Reference& reference,
                                const GoldenTensor& golden) {
  std::vector<double> whole = values_of(golden);
  for (const Gradient& one :
       pieces_beside(run, reference, golden.step,
                     [&](const RecordedPiece& piece) { return piece.name == golden.name; })) {
    auto next = one.actual.begin();
    plan_of(*one.piece).for_each_run([&](int64_t, int64_t global, int64_t length) {
      std::copy_n(next, length, whole.begin() + global);
      next += length;
    });
  }
  return whole;
}

// The state before the step, of which the rule makes what is there. It and the gradient are the
// run's own, which may differ from the reference's after parameters that are unresolved.
std::string was_at_another_place(const RecordedRun& run, const Reference& reference, WrongPart part,
                                 const GoldenTensor& golden, const GoldenTensor* gradient) {
  const auto rule = rule_of_state(reference.record, golden);
  const GoldenTensor* before = reference.record.find(Phase::kStep, golden.step - 1, golden.name);
  if (!rule || !before || !gradient) return "";
  const std::vector<double> gradients = as_recorded(run, reference, *gradient);
  for (size_t i = 0; i < part.values.size(); ++i) {
    part.values[i] -= rule->added * rule->of(gradients[part.places[i]]);
    part.values[i] /= rule->kept;
  }
  return at_another_place(part, as_recorded(run, reference, *before), before->scale,
                          "what this step makes of those that lay",
                          fmt::format(" after step {}", before->step));
}

std::string other_count(const judge::ResultRow& row) {
  const bool is_more = row.actual_value > row.golden_value;
  return fmt::format(
      "the optimizer's count of steps of this parameter is {:.6g}, where the reference has {:.6g}: "
      "{}, and updates are scaled by it",
      row.actual_value, row.golden_value,
      is_more ? "step() was called more often, or the count of another run was loaded"
              : "a step was left out there, or its states were made anew or loaded without their "
                "count");
}

}  // namespace

std::string clue_of_state(const RecordedRun& run, const Reference& reference,
                          const judge::Divergence& found) {
  if (!is_optimizer_state(found.worst.kind)) return "";
  if (found.worst.kind == ObservationKind::kStepCount) return other_count(found.worst);
  const std::vector<Gradient> pieces =
      pieces_beside(run, reference, found.step, [&](const RecordedPiece& piece) {
        return piece.name == found.tensor && std::ranges::count(found.ranks, piece.rank) > 0;
      });
  const WrongPart part = wrong_part(pieces);
  if (pieces.empty()) return "";
  const std::string gradient =
      observed_name(ObservationKind::kGradient, parameter_of(found.worst.kind, found.tensor));
  const GoldenTensor* right = reference.record.find(Phase::kStep, found.step, gradient);
  const GoldenTensor& golden = *pieces.front().golden;
  std::string clue = began_anew(part, right, found.step);
  if (clue.empty()) clue = clipped_otherwise(run, reference, part, golden);
  if (clue.empty()) clue = other_beta(run, reference, part, golden, right, found.ranks);
  if (clue.empty())
    clue = at_another_place(part, values_of(golden), golden.scale, "those of the reference", "");
  if (clue.empty()) clue = was_at_another_place(run, reference, part, golden, right);
  return clue;
}

}  // namespace shardproof::sim::recorded
