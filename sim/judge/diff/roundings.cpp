#include "sim/judge/diff/roundings.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "sim/judge/diff/tolerance.h"

namespace shardproof::sim {
namespace {

// The gradient of the tokens, which is observed before all others.
constexpr const char* kFirstGradient = "lm_head.grad_input";

// The bits of a float32 that a value with so many significant bits lacks.
uint32_t bits_beyond(int significant) { return (uint32_t{1} << (24 - significant)) - 1; }

bool is_whole_for_every_token(const std::string& gradient) {
  return gradient == "grad.lm_head.weight" || gradient.ends_with(".o_proj.weight") ||
         gradient.ends_with(".down_proj.weight");
}

// float16 may lose an addend that is smaller than the others by more than this factor.
constexpr double kSmallestAddend = 1.0 / 1024;

}  // namespace

std::string rounded_through(const at::Tensor& values, Precision precision, size_t fewest) {
  if (values.scalar_type() != at::kFloat) return "";
  if (precision != Precision::kBFloat16 && precision != Precision::kFloat16) return "";
  const uint32_t beyond = bits_beyond(1 - std::ilogb(eps_of_precision(precision)));
  std::set<uint32_t> different;
  const float* data = values.const_data_ptr<float>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, data + i, sizeof(bits));
    if ((bits & beyond) != 0) return "";
    if (data[i] != 0 && different.size() < fewest) different.insert(bits);
  }
  if (different.size() < fewest) return "";
  return "every value has no more bits than a " + name_of(precision) +
         ", where float32 is due: it was rounded through a narrower dtype";
}

namespace {

// Whether roundings of the tensor cancel in a mean over its elements.
bool has_many_draws(const DiffTask& task) {
  if (task.plan.count < kFewestOfFactor) return false;
  const at::Tensor& local = task.local;
  const bool are_rows = local.dim() >= 2 && !task.padding_is_zero;
  return !are_rows || local.numel() / local.size(-1) >= kFewestRowsOfFactor;
}

}  // namespace

FactorCheck check_factor(const DiffTask& task, Precision precision) {
  const GoldenTensor& golden = task.golden;
  if (precision == Precision::kFloat64 || !has_many_draws(task) || !(golden.square > 0) ||
      !std::isfinite(golden.factor_scatter) || !std::isfinite(golden.square)) {
    return {};
  }
  std::vector<double> actual, due;
  copy_both(task, actual, due);
  double along = 0, square = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    along += (actual[i] - due[i]) * due[i];
    square += due[i] * due[i];
  }
  if (!(square > 0) || !std::isfinite(along)) return {};
  const double spread = std::sqrt(golden.square * task.scale * task.scale / square);
  const double rounding = eps_of_precision(precision) / std::sqrt(double(task.plan.count));
  const double allowed =
      std::max(kFactorScatters * golden.factor_scatter, kFloorRoundings * rounding) * spread;
  FactorCheck check{.used = std::fabs(along / square) / allowed};
  if (check.used > 1) {
    check.problem = fmt::format(
        "as a whole it is {:.6g} times the golden, where correct runs in {} are within {:.2g} of "
        "1: its roundings do not cancel",
        1 + along / square, precision, allowed);
  }
  return check;
}

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
  const GoldenTensor* of_tokens = golden_.find(Phase::kBackward, step_, kFirstGradient);
  if (of_tokens == nullptr || of_tokens->value.dim() != 3) return false;
  const int64_t count = of_tokens->value.size(0) * of_tokens->value.size(1);
  const int64_t hidden = of_tokens->value.size(2);
  const double* gradients = of_tokens->value.const_data_ptr<double>();
  double within = 0, beyond = 0;
  for (int64_t token = 0; token < count; ++token) {
    double& largest = tokens_.count(token) != 0 ? within : beyond;
    for (int64_t i = token * hidden; i < (token + 1) * hidden; ++i) {
      largest = std::max(largest, std::fabs(gradients[i]));
    }
  }
  return std::min(within, beyond) > kSmallestAddend * std::max(within, beyond);
}

}  // namespace shardproof::sim
