#include "sim/record/expected_names.h"

namespace shardproof::sim {

std::vector<std::string> expected_names_of(const std::string& observed, int64_t step,
                                           int64_t steps) {
  const bool first = step <= 1;
  const std::string in_step = "step" + std::to_string(step) + "." + observed;
  std::vector<std::string> names;
  if (observed == "logprobs" && first) names.push_back(observed);
  if (observed == "loss" || observed == "grad_norm") {
    if (first) names.push_back(observed);
    if (step >= 1) names.push_back(in_step);
  }
  if (observed.compare(0, 5, "grad.") == 0 && step == 1) names.push_back(observed);
  if (observed.compare(0, 6, "param.") == 0 && step == steps && step >= 1) names.push_back(in_step);
  return names;
}

}  // namespace shardproof::sim
