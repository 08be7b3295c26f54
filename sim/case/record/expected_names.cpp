#include "sim/case/record/expected_names.h"

namespace shardproof::sim {

std::vector<std::string> expected_names_of(ObservationKind kind, const std::string& observed,
                                           int64_t step, int64_t steps) {
  using enum ObservationKind;
  const bool first = step <= 1;
  const std::string in_step = "step" + std::to_string(step) + "." + observed;
  std::vector<std::string> names;
  if (kind == kLogprobs && first) names.push_back(observed);
  if (kind == kLoss || kind == kGradNorm) {
    if (first) names.push_back(observed);
    if (step >= 1) names.push_back(in_step);
  }
  if (kind == kGradient && step == 1) names.push_back(observed);
  if (kind == kParameter && step == steps && step >= 1) names.push_back(in_step);
  return names;
}

std::vector<std::string> moment_names_of(ObservationKind kind, const std::string& observed,
                                         int64_t moment) {
  using enum ObservationKind;
  switch (kind) {
    case kLogprobs:
    case kLoss:
    case kScores:
    case kGradient:
    case kGradNorm:
    case kParameter:
      return {"step" + std::to_string(moment) + "." + observed};
    default:
      return {};
  }
}

}  // namespace shardproof::sim
