#include "sim/case/record/expected_names.h"

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

std::vector<std::string> moment_names_of(const std::string& observed, int64_t moment) {
  bool named = observed.starts_with("grad.") || observed.starts_with("param.");
  for (const char* name : {"logprobs", "loss", "grad_norm", "scores", "reference_scores"}) {
    named = named || observed == name;
  }
  if (!named) return {};
  return {"step" + std::to_string(moment) + "." + observed};
}

}  // namespace shardproof::sim
