#include "sim/judge/probe/own_optimizer.h"

#include <ATen/Dispatch.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "sim/case/policy_stages.h"
#include "sim/judge/diff/muon.h"
#include "sim/judge/diff/tolerance.h"

namespace shardproof::sim::judge {
namespace {

// `value`, or infinity where the dtype cannot hold it.
double held_in(at::ScalarType dtype, double value) {
  const double largest =
      dtype == at::kDouble ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
  return std::fabs(value) > largest ? std::copysign(HUGE_VAL, value) : value;
}

}  // namespace

OwnOptimizer::OwnOptimizer(const CaseSpec& spec, const GoldenRecord& golden, const Mesh& mesh,
                           int64_t rank)
    : spec_(spec), golden_(golden), mesh_(mesh), rank_(rank) {}

OwnOptimizer::Values OwnOptimizer::copy_of(const at::Tensor& tensor) {
  Values values{.bytes = std::vector<std::byte>(tensor.nbytes()), .dtype = tensor.scalar_type()};
  if (!values.bytes.empty()) {
    std::memcpy(values.bytes.data(), tensor.const_data_ptr(), values.bytes.size());
  }
  return values;
}

std::vector<double> OwnOptimizer::doubles(const void* data, at::ScalarType dtype, size_t count) {
  std::vector<double> out(count);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "own_optimizer", [&] {
    const auto* from = static_cast<const scalar_t*>(data);
    std::copy(from, from + count, out.begin());
  });
  return out;
}

std::vector<double> OwnOptimizer::doubles(const at::Tensor& tensor) {
  return doubles(tensor.const_data_ptr(), tensor.scalar_type(),
                 static_cast<size_t>(tensor.numel()));
}

// Zeros when `values` is empty.
std::vector<double> OwnOptimizer::doubles(const Values& values, size_t count) {
  if (values.empty()) return std::vector<double>(count, 0.0);
  return doubles(values.bytes.data(), values.dtype, count);
}

void OwnOptimizer::begin(const std::string& parameter, const at::Tensor& value) {
  parameters_[parameter] = {};
  parameters_[parameter].value = copy_of(value.detach().cpu().contiguous());
}

std::string OwnOptimizer::see(const Observation& observation, const at::Tensor& local) {
  if (observation.phase != Phase::kStep || observation.part == Part::kPartial) return "";
  if (!at::isFloatingType(local.scalar_type()) || local.numel() == 0) return "";
  using enum ObservationKind;
  const ObservationKind kind = observation.kind;
  const std::string name = parameter_of(kind, observation.name);
  const int64_t step = observation.step;
  if (kind == kGradNorm) {
    norm_ = doubles(local).front();
    norm_step_ = step;
  } else if (kind == kSkipped) {
    skipped_[step] = doubles(local).front() != 0;
  } else if (kind == kRate) {
    rates_[step] = doubles(local).front();
  } else if (kind == kGradient) {
    Tracked& tracked = parameters_[name];
    tracked.gradient = copy_of(local);
    tracked.gradient_step = step;
    tracked.layout = observation.layout;
  } else if (kind == kWholeMatrix) {
    return see_whole(observation, local);
  } else if (kind == kParameter) {
    return see_parameter(name, step, local);
  } else if (is_moment(kind)) {
    return see_state(kind, name, local);
  }
  return "";
}

std::string OwnOptimizer::see_parameter(const std::string& name, int64_t step,
                                        const at::Tensor& local) {
  Tracked& tracked = parameters_[name];
  tracked.expected.clear();
  const auto count = static_cast<size_t>(local.numel());
  const bool known = tracked.value.bytes.size() == local.nbytes() && !tracked.value.empty();
  // A matrix of Muon has no step without what the rank has collected.
  const bool collected =
      !has_muon(spec_.optimizer, name, local.sizes().vec()) || !tracked.update.value.empty();
  const bool stepped = collected && has_step(tracked, step, local.nbytes());
  std::string finding;
  if (known && stepped) {
    const Expected expected = take_step(tracked, name, step, count);
    finding = compare(expected, local);
    if (!finding.empty()) finding += share_of_step(tracked, expected, local);
  } else if (known && skipped_.count(step) != 0 && skipped_.at(step)) {
    const std::vector<double> before = doubles(tracked.value, count);
    finding = compare({before, std::vector<double>(count, 0.0)}, local);
  }
  tracked.value = copy_of(local);
  tracked.gradient = {};
  return finding;
}

std::string OwnOptimizer::see_state(ObservationKind kind, const std::string& name,
                                    const at::Tensor& local) {
  Tracked& tracked = parameters_[name];
  std::string finding;
  const auto expected = tracked.expected.find(kind);
  if (expected != tracked.expected.end()) {
    finding = compare(expected->second, local);
    tracked.expected.erase(expected);  // frees it before the next step
  }
  tracked.state[kind] = copy_of(local);
  return finding;
}

// Returns "; it moved by 0.60 of that step" when one share fits all elements, else "".
std::string OwnOptimizer::share_of_step(const Tracked& tracked, const Expected& expected,
                                        const at::Tensor& local) const {
  const size_t count = expected.value.size();
  const std::vector<double> before = doubles(tracked.value, count);
  const std::vector<double> after = doubles(local);
  double product = 0, due = 0, moved = 0;
  for (size_t i = 0; i < count; ++i) {
    const double step = expected.value[i] - before[i], taken = after[i] - before[i];
    product += step * taken;
    due += step * step;
    moved += taken * taken;
  }
  if (!(due > 0) || !(moved > 0) || product * product < 0.98 * due * moved) return "";
  return fmt::format("; it moved by {:.2f} of that step", product / due);
}

bool OwnOptimizer::has_step(const Tracked& tracked, int64_t step, size_t bytes) const {
  return tracked.gradient_step == step && norm_step_ == step &&
         tracked.gradient.bytes.size() == bytes;
}

std::vector<double> OwnOptimizer::clipped_gradient(const Tracked& tracked, size_t count) const {
  std::vector<double> gradient = doubles(tracked.gradient, count);
  const double max_norm = spec_.optimizer.max_norm;
  // NaN for a norm that is NaN, as in clip_grads: min gives its first argument then.
  const double clip = max_norm > 0 ? std::min(max_norm / (norm_ + kClipEps), 1.0) : 1.0;
  for (double& value : gradient) value *= clip;
  return gradient;
}

double OwnOptimizer::rate_of(int64_t step) const {
  const GoldenTensor* rate = golden_.find(Phase::kStep, step, "lr");
  const auto own_rate = rates_.find(step);  // of a step that the golden skips
  return rate                       ? *rate->value.data<double>()
         : own_rate != rates_.end() ? own_rate->second
                                    : spec_.optimizer.lr;
}

OwnOptimizer::Expected OwnOptimizer::take_step(Tracked& tracked, const std::string& name,
                                               int64_t step, size_t count) {
  const double lr = rate_of(step);
  if (!tracked.update.value.empty()) return muon_step(tracked, lr);
  const std::vector<double> gradient = clipped_gradient(tracked, count);
  // Without those that an overflow skipped: on this rank, which may skip others than the golden.
  double steps = 0;
  for (const int64_t before : steps_behind(spec_, step)) {
    const auto own = skipped_.find(before);
    const bool made = own != skipped_.end()
                          ? !own->second
                          : golden_.find(Phase::kStep, before, "grad." + name) != nullptr;
    if (made) ++steps;
  }
  return spec_.optimizer.kind == OptimizerKind::kSgd ? sgd_step(tracked, gradient, lr)
                                                     : adamw_step(tracked, gradient, lr, steps);
}

OwnOptimizer::Expected OwnOptimizer::adamw_step(Tracked& tracked,
                                                const std::vector<double>& gradient, double rate,
                                                double steps) const {
  const OptimizerSpec& o = spec_.optimizer;
  const size_t count = gradient.size();
  const std::vector<double> w = doubles(tracked.value, count);
  const std::vector<double> m = doubles(tracked.state[ObservationKind::kExpAvg], count);
  const std::vector<double> v = doubles(tracked.state[ObservationKind::kExpAvgSq], count);
  const at::ScalarType dtype = tracked.value.dtype;
  const double correction1 = 1 - std::pow(o.beta1, steps);
  const double correction2 = 1 - std::pow(o.beta2, steps);
  Expected value{std::vector<double>(count), std::vector<double>(count)};
  Expected mean = value, square = value;
  for (size_t i = 0; i < count; ++i) {
    const double kept = o.beta1 * m[i], joins = (1 - o.beta1) * gradient[i];
    mean.value[i] = held_in(dtype, kept + joins);
    mean.magnitude[i] = std::fabs(kept) + std::fabs(joins);
    square.value[i] = held_in(dtype, o.beta2 * v[i] + (1 - o.beta2) * gradient[i] * gradient[i]);
    square.magnitude[i] = square.value[i];
    const double size = std::sqrt(square.value[i] / correction2) + o.eps;
    value.value[i] = w[i] * (1 - rate * o.weight_decay) - rate * mean.value[i] / correction1 / size;
    value.magnitude[i] = std::fabs(w[i]) + rate * mean.magnitude[i] / correction1 / size;
  }
  tracked.expected[ObservationKind::kExpAvg] = std::move(mean);
  tracked.expected[ObservationKind::kExpAvgSq] = std::move(square);
  return value;
}

OwnOptimizer::Expected OwnOptimizer::sgd_step(Tracked& tracked, const std::vector<double>& gradient,
                                              double rate) const {
  const OptimizerSpec& o = spec_.optimizer;
  const size_t count = gradient.size();
  const std::vector<double> w = doubles(tracked.value, count);
  const at::ScalarType dtype = tracked.value.dtype;
  const bool first = tracked.state[ObservationKind::kMomentumBuffer].empty();
  const std::vector<double> b = doubles(tracked.state[ObservationKind::kMomentumBuffer], count);
  Expected value{std::vector<double>(count), std::vector<double>(count)};
  Expected buffer = value;
  for (size_t i = 0; i < count; ++i) {
    const double decay = o.weight_decay * w[i], d = gradient[i] + decay;
    const double size = std::fabs(gradient[i]) + std::fabs(decay);
    const double joins = first ? 1 : 1 - o.dampening;
    buffer.value[i] = held_in(dtype, o.momentum * b[i] + joins * d);
    buffer.magnitude[i] = std::fabs(o.momentum * b[i]) + joins * size;
    const bool heavy = o.momentum != 0;
    const double direction = o.nesterov && heavy ? d + o.momentum * buffer.value[i]
                             : heavy             ? buffer.value[i]
                                                 : d;
    value.value[i] = w[i] - rate * direction;
    value.magnitude[i] = std::fabs(w[i]) + rate * (size + (heavy ? buffer.magnitude[i] : 0));
  }
  if (o.momentum != 0) tracked.expected[ObservationKind::kMomentumBuffer] = std::move(buffer);
  return value;
}

std::string OwnOptimizer::compare(const Expected& expected, const at::Tensor& local) {
  const size_t count = expected.value.size();
  const std::vector<double> actual = doubles(local);
  const double eps = local.scalar_type() == at::kDouble ? kFloat64Eps : 0x1p-23;
  judged_ += static_cast<int64_t>(count);
  size_t wrong = 0, worst = 0;
  double worst_ratio = -1;
  for (size_t i = 0; i < count; ++i) {
    const double due = held_in(local.scalar_type(), expected.value[i]);
    const double error = std::fabs(actual[i] - due);
    const double allowance =
        kOwnRoundings * eps * expected.magnitude[i] + std::numeric_limits<float>::denorm_min();
    const bool both_nan = std::isnan(actual[i]) && std::isnan(due);
    const bool within = std::isfinite(due) && std::isfinite(allowance) && error <= allowance;
    if (within || actual[i] == due || both_nan) continue;
    ++wrong;
    const double ratio =
        std::isfinite(error) && std::isfinite(allowance) ? error / allowance : HUGE_VAL;
    if (ratio <= worst_ratio) continue;
    worst_ratio = ratio;
    worst = i;
  }
  if (wrong == 0) return "";
  return fmt::format(
      "does not follow from the rank's own gradient, norm and state before the step: {} of {} "
      "elements, the worst at local offset {} is {:.9g} and should be {:.9g}",
      wrong, count, worst, actual[worst], held_in(local.scalar_type(), expected.value[worst]));
}

}  // namespace shardproof::sim::judge
