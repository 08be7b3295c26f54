#include "sim/uses/recorded/state_rule.h"

#include <cmath>

#include "observe/observation_kind.h"

namespace shardproof::sim::recorded {
namespace {

constexpr int64_t kFewestToFit = 4;      // elements
constexpr double kRoundingOfFit = 1e-9;  // of the state's largest value
constexpr double kLeastIndependent = 1e-9;

}  // namespace

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
