#include "sim/judge/diff/roundings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "sim/judge/diff/tolerance.h"

namespace shardproof::sim::judge {
namespace {

// The bits of a float32 that a value with so many significant bits lacks.
uint32_t bits_beyond(int significant) { return (uint32_t{1} << (24 - significant)) - 1; }

}  // namespace

std::string rounded_through(const TensorView& values, Precision precision, size_t fewest) {
  if (values.dtype() != Dtype::kFloat32) return "";
  if (precision != Precision::kBFloat16 && precision != Precision::kFloat16) return "";
  const uint32_t beyond = bits_beyond(1 - std::ilogb(eps_of_precision(precision)));
  std::set<uint32_t> different;
  const float* data = values.data<float>();
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
  const TensorView& local = task.local;
  const bool are_rows = local.dim() >= 2 && !task.padding_is_zero;
  return !are_rows || local.numel() / local.sizes().back() >= kFewestRowsOfFactor;
}

}  // namespace

FactorCheck check_factor(const DiffTask& task, Precision precision) {
  const GoldenTensor& golden = task.golden;
  const double scatter =
      task.members == Members::kFew ? golden.few_factor_scatter : golden.factor_scatter;
  if (precision == Precision::kFloat64 || !has_many_draws(task) || !(golden.square > 0) ||
      !std::isfinite(scatter) || !std::isfinite(golden.square)) {
    return {};
  }
  const auto [along, square] = along_golden(task);
  if (!(square > 0) || !std::isfinite(along)) return {};
  const double spread = std::sqrt(golden.square * task.scale * task.scale / square);
  const double rounding = eps_of_precision(precision) / std::sqrt(double(task.plan.count));
  const double allowed = std::max(kFactorScatters * scatter, kFloorRoundings * rounding) * spread;
  FactorCheck check{.used = std::fabs(along / square) / allowed};
  if (check.used > 1) {
    check.problem = fmt::format(
        "as a whole it is {:.6g} times the golden, where correct runs in {} are within {:.2g} of "
        "1: its roundings do not cancel",
        1 + along / square, precision, allowed);
  }
  return check;
}

FactorCheck check_squares(const DiffTask& task, Precision precision) {
  const GoldenTensor& golden = task.golden;
  const std::vector<double>& scatters =
      task.members == Members::kFew ? golden.few_square_scatters : golden.square_scatters;
  if (precision == Precision::kFloat64 || task.plan.count < kFewestOfFactor ||
      task.padding_is_zero || scatters.empty() || !(golden.square > 0)) {
    return {};
  }
  double square = 0, held = 0, scatter = 0;
  const std::vector<PartErrors> errors = errors_of_parts(task, std::ssize(scatters));
  for (size_t part = 0; part < errors.size(); ++part) {
    if (errors[part].count == 0) continue;
    square += errors[part].square;
    held += errors[part].golden;
    scatter += scatters[part];
  }
  const double allowed = std::max(kSquareScatters * std::fabs(task.scale) * std::sqrt(scatter),
                                  eps_of_precision(precision) * std::sqrt(held));
  if (!std::isfinite(square) || !std::isfinite(scatter) || !(allowed > 0)) return {};
  FactorCheck check{.used = std::sqrt(square) / allowed};
  if (check.used > 1) {
    check.problem = fmt::format(
        "each element is within its allowance, but together their errors are {:.2g} times the most "
        "that runs of one device in {} have",
        check.used * kSquareScatters, precision);
  }
  return check;
}

}  // namespace shardproof::sim::judge
