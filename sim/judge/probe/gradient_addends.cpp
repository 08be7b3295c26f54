#include "sim/judge/probe/gradient_addends.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "sim/case/policy_stages.h"

namespace shardproof::sim::judge {
namespace {

// The gradient of the tokens, which is observed before all others.
constexpr const char* kFirstGradient = "lm_head.grad_input";

bool is_whole_for_every_token(const std::string& gradient) {
  return gradient == "grad.lm_head.weight" || gradient.ends_with(".o_proj.weight") ||
         gradient.ends_with(".down_proj.weight");
}

bool is_rounded_once(const ParallelSpec& parallel, const std::string& gradient) {
  return parallel.deferred_wgrad > 0 && parallel.gradients == GradientPlace::kAutograd &&
         gradient == "grad.lm_head.weight";
}

// float16 may lose an addend that is smaller than the others by more than this factor.
constexpr double kSmallestAddend = 1.0 / 1024;

}  // namespace

void GradientAddends::see(const Observation& observation) {
  if (observation.name != kFirstGradient || !observation.token_map.defined()) return;
  if (observation.step != step_) {
    step_ = observation.step;
    microbatch_ = observation.microbatch;
    tokens_.clear();
  }
  if (observation.microbatch != microbatch_) return;
  const at::Tensor map = observation.token_map.contiguous();
  const int64_t* ids = map.const_data_ptr<int64_t>();
  tokens_.insert(ids, ids + map.numel());
}

bool GradientAddends::are_several(const GoldenTensor& gradient) const {
  if (gradient.step != step_ || !is_whole_for_every_token(gradient.name)) return false;
  if (is_rounded_once(parallel_at(spec_, step_), gradient.name)) return false;
  const GoldenTensor* of_tokens = golden_.find(Phase::kBackward, step_, kFirstGradient);
  if (of_tokens == nullptr || of_tokens->value.dim() != 3) return false;
  const int64_t count = of_tokens->value.size(0) * of_tokens->value.size(1);
  const int64_t hidden = of_tokens->value.size(2);
  const double* gradients = of_tokens->value.data<double>();
  double within = 0, beyond = 0;
  const int64_t positions = of_tokens->value.size(1);
  for (int64_t token = 0; token < count; ++token) {
    const std::vector<int64_t>& rows = of_tokens->rows;
    const int64_t sample = token / positions;
    const int64_t id =
        rows.empty() ? token : rows[static_cast<size_t>(sample)] * positions + token % positions;
    double& largest = tokens_.count(id) != 0 ? within : beyond;
    for (int64_t i = token * hidden; i < (token + 1) * hidden; ++i) {
      largest = std::max(largest, std::fabs(gradients[i]));
    }
  }
  return std::min(within, beyond) > kSmallestAddend * std::max(within, beyond);
}

}  // namespace shardproof::sim::judge
