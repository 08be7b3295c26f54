#include "sim/judge/probe/own_norm.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardproof::sim::judge {
namespace {

constexpr double kFloat32Eps = 0x1p-23;
// In eps of float32: the roundings of squares, their sum, the root and products.
constexpr double kWideRoundings = 32;

// The number of bits of a dtype's significand, and the exponent of its smallest number.
struct Format {
  int significand;
  int least;
};

template <class Value>
Format format() {
  using Limits = std::numeric_limits<Value>;
  return {Limits::digits, Limits::min_exponent - Limits::digits};
}

Format format_of(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return format<c10::BFloat16>();
  if (dtype == at::kHalf) return format<c10::Half>();
  return format<float>();
}

// Half the distance between the two neighbors of `value` in the format.
double half_unit(double value, const Format& format) {
  if (value == 0 || !std::isfinite(value)) return std::ldexp(1.0, format.least - 1);
  return std::ldexp(1.0, std::max(std::ilogb(value) - format.significand, format.least - 1));
}

}  // namespace

std::string own_norm_problem(const NormRule& rule, const Observation& observation,
                             const at::Tensor& local) {
  if (observation.inputs.size() != 2 || local.numel() == 0) return "";
  const at::NoGradGuard no_grad;
  const at::Tensor input = observation.inputs[0].detach().cpu().to(at::kDouble).contiguous();
  const at::Tensor weight = observation.inputs[1].detach().cpu().to(at::kDouble).contiguous();
  const int64_t width = weight.numel();
  if (input.sizes() != local.sizes() || width == 0 || local.size(-1) != width) return "";
  const at::Tensor output = local.to(at::kDouble);
  const double* x = input.const_data_ptr<double>();
  const double* w = weight.const_data_ptr<double>();
  const double* y = output.const_data_ptr<double>();
  const double offset = rule.adds_one ? 1 : 0, eps = rule.eps(observation.name);
  const Format format = format_of(local.scalar_type());
  int64_t wrong = 0, worst = 0;
  double worst_error = -1, due_there = 0;
  for (int64_t row = 0; row < local.numel(); row += width) {
    double square = 0;
    for (int64_t i = row; i < row + width; ++i) square += x[i] * x[i];
    const double inverse_root = 1 / std::sqrt(square / static_cast<double>(width) + eps);
    for (int64_t i = row; i < row + width; ++i) {
      const double normed = x[i] * inverse_root, due = normed * (w[i - row] + offset);
      const double wide = std::fabs(normed) * (std::fabs(w[i - row]) + offset);
      const double error = std::fabs(y[i] - due);
      if (error <= half_unit(due, format) + kWideRoundings * kFloat32Eps * wide) continue;
      if (!std::isfinite(due) || std::isinf(y[i])) continue;  // the run overflowed
      ++wrong;
      if (error <= worst_error) continue;
      worst_error = error;
      worst = i;
      due_there = due;
    }
  }
  if (wrong == 0) return "";
  return fmt::format(
      "does not follow from the rank's own input of this norm, computed in float32 and rounded "
      "once: {} of {} elements, the worst at local offset {} is {:.9g} and should be {:.9g}",
      wrong, local.numel(), worst, y[worst], due_there);
}

}  // namespace shardproof::sim::judge
