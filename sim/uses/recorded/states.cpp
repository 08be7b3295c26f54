// The cause of a wrong state of an optimizer.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

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
constexpr size_t kFewestOfState = 4;  // elements that tell

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
      "empty states there, which were lost, or made anew",
      is_first ? of_gradient : of_square, is_first ? "gradient" : "square of the gradient", step);
}

// The moment of a gradient, or of its square, that was multiplied by the clip coefficient.
std::string clipped_otherwise(const RecordedRun& run, const WrongPart& part,
                              const GoldenTensor& golden) {
  constexpr double kSame = 1e-4;
  const auto scalar = std::ranges::find_if(run.pieces, [&](const RecordedPiece& piece) {
    return piece.step == golden.step && piece.name == "clip_coefficient" &&
           piece.values.holds<double>();
  });
  if (scalar == run.pieces.end() || !golden.value.holds<double>()) return "";
  const double coefficient = *scalar->values.data<double>();
  if (!(coefficient > 0) || !(coefficient < 1 - kSame)) return "";
  const double* values = golden.value.data<double>();
  const double factor = multiple_of(part, [&](size_t at) { return values[at]; });
  const bool is_square = golden.kind == ObservationKind::kExpAvgSq;
  const double of_gradient = is_square ? std::sqrt(std::fmax(factor, 0)) : factor;
  const auto is = [&](double due) { return std::fabs(of_gradient - due) <= kSame * due; };
  if (!is(coefficient) && !is(1 / coefficient)) return "";
  return fmt::format("it is that of gradients times {:.6g}, {} the clip coefficient of step {}: {}",
                     of_gradient, is(coefficient) ? "which is" : "1 over", golden.step,
                     is(coefficient) ? "they were clipped twice" : "they were not clipped");
}

// How many values equal the reference's after the shift, and how many do not. At the end of a flat
// buffer those of its neighbors come in, so some need not. Zeros tell nothing.
struct Shifted {
  size_t equal = 0, other = 0;
};

Shifted count_shifted(const WrongPart& part, const std::vector<double>& whole, int64_t shift,
                      double rounding) {
  const auto size = static_cast<int64_t>(whole.size());
  Shifted count;
  for (size_t i = 0; i < part.values.size(); ++i) {
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
    for (int64_t from = 0; from < size; ++from) {
      const int64_t shift = from - static_cast<int64_t>(part.places[probe]);
      if (shift == 0 || !(std::fabs(part.values[probe] - whole[from]) <= rounding)) continue;
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

std::vector<double> values_of(const GoldenTensor& golden) {
  const double* values = golden.value.data<double>();
  return {values, values + golden.value.numel()};
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
  return fmt::format(
      "the optimizer's count of steps of this parameter is {:.6g}, where the reference has {:.6g}: "
      "its states were made anew, or loaded without their count, by which updates are scaled",
      row.actual_value, row.golden_value);
}

}  // namespace

std::string clue_of_state(const RecordedRun& run, const Reference& reference,
                          const judge::Divergence& found) {
  if (!is_optimizer_state(found.worst.kind)) return "";
  if (found.worst.kind == ObservationKind::kStepCount) return other_count(found.worst);
  const std::vector<Gradient> pieces =
      pieces_beside(run, reference, found.step, [&](const RecordedPiece& piece) {
        return piece.name == found.tensor &&
               std::count(found.ranks.begin(), found.ranks.end(), piece.rank) > 0;
      });
  const WrongPart part = wrong_part(pieces);
  if (pieces.empty()) return "";
  const std::string gradient =
      observed_name(ObservationKind::kGradient, parameter_of(found.worst.kind, found.tensor));
  const GoldenTensor* right = reference.record.find(Phase::kStep, found.step, gradient);
  const GoldenTensor& golden = *pieces.front().golden;
  std::string clue = began_anew(part, right, found.step);
  if (clue.empty()) clue = clipped_otherwise(run, part, golden);
  if (clue.empty())
    clue = at_another_place(part, values_of(golden), golden.scale, "those of the reference", "");
  if (clue.empty()) clue = was_at_another_place(run, reference, part, golden, right);
  return clue;
}

namespace {

// The rate that the parameter's optimizer had in the step; unset where it is not recorded.
std::optional<double> rate_of(const std::vector<double>& rates, int64_t step) {
  if (step < 1 || step > std::ssize(rates)) return std::nullopt;
  return rates[static_cast<size_t>(step - 1)];
}

std::string other_rate(const RecordedRun& run, const Reference& reference,
                       const std::string& parameter, int64_t step) {
  if (run.from_step > 0) return "";  // whose first step is a later one of the golden
  const ParameterGroup* here = group_of(run.groups, parameter);
  const ParameterGroup* there = group_of(reference.groups, parameter);
  if (!here && !run.groups.empty()) return "";  // run.json has the groups of rank 0 alone
  const GoldenTensor* common = reference.record.find(Phase::kStep, step, "lr");
  const auto own = rate_of(here ? here->lr : run.lr, step);
  std::optional<double> due;
  if (there) {
    due = rate_of(there->lr, step);
  } else if (common && common->value.holds<double>()) {
    due = *common->value.data<double>();
  }
  constexpr double kSameRate = 1e-9;  // which two schedulers may round otherwise
  if (!own || !due || !(std::fabs(*own - *due) > kSameRate * std::fabs(*due))) return "";
  return fmt::format("lr of step {} is {:.6g}, the golden's {:.6g}", step, *own, *due);
}

}  // namespace

std::string other_settings(const RecordedRun& run, const Reference& reference,
                           const std::string& parameter, int64_t step) {
  const auto settings_of = [&](const auto& one) {
    const ParameterGroup* group = group_of(one.groups, parameter);
    if (!group && !one.groups.empty()) return std::map<std::string, std::string>();
    return group ? group->settings : one.settings;
  };
  std::map<std::string, std::string> here = settings_of(run), there = settings_of(reference);
  if (here.contains("rule") && there.contains("rule")) here.erase("type");  // the rule counts
  // A subclass may compute what its base class does.
  constexpr const char* kUnknown = "\"other\"";
  const auto is_unknown = [](const std::map<std::string, std::string>& settings) {
    const auto rule = settings.find("rule");
    return rule != settings.end() && rule->second == kUnknown;
  };
  if (is_unknown(here) || is_unknown(there)) here.erase("rule");
  std::vector<std::string> texts;
  for (const auto& [key, value] : here) {
    const auto other = there.find(key);
    if (other == there.end() || other->second == value) continue;
    texts.push_back(fmt::format("{} is {}, the golden's {}", key, value, other->second));
  }
  if (const std::string rate = other_rate(run, reference, parameter, step); !rate.empty()) {
    texts.push_back(rate);
  }
  if (texts.empty()) return "";
  return fmt::format("the optimizers have other settings (run.json): {}", fmt::join(texts, "; "));
}

}  // namespace shardproof::sim::recorded
