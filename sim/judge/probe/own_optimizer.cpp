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

// The largest that the dtype can hold.
double largest_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? std::numeric_limits<double>::max()
                              : std::numeric_limits<float>::max();
}

template <class Value>
void to_doubles(const Value* from, size_t count, double* to) {
  std::copy(from, from + count, to);
}
void to_doubles(const float* from, size_t count, double* to) { widen(from, count, to); }

void read_doubles(const void* data, at::ScalarType dtype, size_t first, size_t count, double* out) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "own_optimizer", [&] {
    const auto* from = static_cast<const scalar_t*>(data) + first;
    to_doubles(from, count, out);
  });
}

// Calls run(first, count, values) for each block of `tensor`, contiguous on the CPU.
template <size_t kBlock, class Run>
void for_blocks(const at::Tensor& tensor, const Run& run) {
  const auto size = static_cast<size_t>(tensor.numel());
  std::array<double, kBlock> values;
  for (size_t first = 0; first < size; first += kBlock) {
    const size_t count = std::min(kBlock, size - first);
    read_doubles(tensor.const_data_ptr(), tensor.scalar_type(), first, count, values.data());
    run(first, count, values.data());
  }
}

double number_of(const at::Tensor& tensor) {
  double number = 0;
  read_doubles(tensor.const_data_ptr(), tensor.scalar_type(), 0, 1, &number);
  return number;
}

}  // namespace

OwnOptimizer::OwnOptimizer(const CaseSpec& spec, const GoldenRecord& golden, const Mesh& mesh,
                           int64_t rank)
    : spec_(spec), golden_(golden), mesh_(mesh), rank_(rank) {}

void OwnOptimizer::Values::read(size_t first, size_t count, double* out) const {
  if (empty()) {
    std::fill_n(out, count, 0.0);
  } else {
    read_doubles(bytes.get(), dtype, first, count, out);
  }
}

OwnOptimizer::Values OwnOptimizer::copy_of(const at::Tensor& tensor) {
  const auto bytes = std::make_shared_for_overwrite<std::byte[]>(tensor.nbytes());
  if (tensor.nbytes() != 0) std::memcpy(bytes.get(), tensor.const_data_ptr(), tensor.nbytes());
  return {.bytes = bytes, .size = tensor.nbytes(), .dtype = tensor.scalar_type()};
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
    norm_ = number_of(local);
    norm_step_ = step;
  } else if (kind == kSkipped) {
    skipped_[step] = number_of(local) != 0;
  } else if (kind == kRate) {
    rates_[step] = number_of(local);
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
  const bool known = tracked.value.size == local.nbytes() && !tracked.value.empty();
  // A matrix of Muon has no step without what the rank has collected.
  const bool collected =
      !has_muon(spec_.optimizer, name, local.sizes().vec()) || !tracked.update.empty();
  const size_t updates = tracked.update.size();
  const bool fits = updates == 0 || updates == static_cast<size_t>(local.numel());
  const bool stepped = collected && fits && has_step(tracked, step, local.nbytes());
  std::string finding;
  if (known && stepped) {
    const Expected expected = take_step(tracked, name, step);
    finding = compare(expected, local);
    if (!finding.empty()) finding += share_of_step(tracked, expected, local);
  } else if (known && skipped_.count(step) != 0 && skipped_.at(step)) {
    const auto unchanged = [&](size_t first, size_t count, Block& due) {
      tracked.value.read(first, count, due.value.data());
      std::fill_n(due.magnitude.data(), count, 0.0);
    };
    finding = compare(unchanged, local);
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
  double product = 0, due = 0, moved = 0;
  for_blocks<kBlock>(local, [&](size_t first, size_t count, const double* after) {
    Block block;
    std::array<double, kBlock> before;
    expected(first, count, block);
    tracked.value.read(first, count, before.data());
    for (size_t i = 0; i < count; ++i) {
      const double step = block.value[i] - before[i], taken = after[i] - before[i];
      product += step * taken;
      due += step * step;
      moved += taken * taken;
    }
  });
  if (!(due > 0) || !(moved > 0) || product * product < 0.98 * due * moved) return "";
  return fmt::format("; it moved by {:.2f} of that step", product / due);
}

bool OwnOptimizer::has_step(const Tracked& tracked, int64_t step, size_t bytes) const {
  return tracked.gradient_step == step && norm_step_ == step && tracked.gradient.size == bytes;
}

OwnOptimizer::Gradient OwnOptimizer::clipped_gradient(const Tracked& tracked) const {
  const double max_norm = spec_.optimizer.max_norm;
  // NaN for a norm that is NaN, as in clip_grads: min gives its first argument then.
  const double clip = max_norm > 0 ? std::min(max_norm / (norm_ + kClipEps), 1.0) : 1.0;
  return [gradient = tracked.gradient, clip](size_t first, size_t count, double* out) {
    gradient.read(first, count, out);
    for (size_t i = 0; i < count; ++i) out[i] *= clip;
  };
}

double OwnOptimizer::rate_of(int64_t step) const {
  const GoldenTensor* rate = golden_.find(Phase::kStep, step, "lr");
  const auto own_rate = rates_.find(step);  // of a step that the golden skips
  return rate                       ? *rate->value.data<double>()
         : own_rate != rates_.end() ? own_rate->second
                                    : spec_.optimizer.lr;
}

OwnOptimizer::Expected OwnOptimizer::take_step(Tracked& tracked, const std::string& name,
                                               int64_t step) {
  const double lr = rate_of(step);
  if (!tracked.update.empty()) return muon_step(tracked, lr);
  if (spec_.optimizer.kind == OptimizerKind::kSgd) return sgd_step(tracked, lr);
  // Without those that an overflow skipped: on this rank, which may skip others than the golden.
  double steps = 0;
  for (const int64_t before : steps_behind(spec_, step)) {
    const auto own = skipped_.find(before);
    const bool made = own != skipped_.end()
                          ? !own->second
                          : golden_.find(Phase::kStep, before, "grad." + name) != nullptr;
    if (made) ++steps;
  }
  return adamw_step(tracked, lr, steps);
}

OwnOptimizer::Expected OwnOptimizer::adamw_step(Tracked& tracked, double rate, double steps) const {
  const OptimizerSpec& o = spec_.optimizer;
  const double largest = largest_of(tracked.value.dtype);
  const double correction1 = 1 - std::pow(o.beta1, steps);
  const double correction2 = 1 - std::pow(o.beta2, steps);
  const Gradient gradient = clipped_gradient(tracked);
  const auto mean = [=, &o, m = tracked.state[ObservationKind::kExpAvg]](size_t first, size_t count,
                                                                         Block& due) {
    std::array<double, kBlock> g, before;
    gradient(first, count, g.data());
    m.read(first, count, before.data());
    first_moment(o.beta1, largest, before.data(), g.data(), count, due);
  };
  const auto square = [=, &o, v = tracked.state[ObservationKind::kExpAvgSq]](
                          size_t first, size_t count, Block& due) {
    std::array<double, kBlock> g, before;
    gradient(first, count, g.data());
    v.read(first, count, before.data());
    second_moment(o.beta2, largest, before.data(), g.data(), count, due);
  };
  tracked.expected[ObservationKind::kExpAvg] = mean;
  tracked.expected[ObservationKind::kExpAvgSq] = square;
  return [=, &o, value = tracked.value](size_t first, size_t count, Block& due) {
    Block squares;
    std::array<double, kBlock> w;
    mean(first, count, due);
    square(first, count, squares);
    value.read(first, count, w.data());
    adamw_parameter(1 - rate * o.weight_decay, rate / correction1, correction2, o.eps, w.data(),
                    squares, count, due);
  };
}

OwnOptimizer::Expected OwnOptimizer::sgd_step(Tracked& tracked, double rate) const {
  const OptimizerSpec& o = spec_.optimizer;
  const double largest = largest_of(tracked.value.dtype);
  const Values before = tracked.state[ObservationKind::kMomentumBuffer];
  const bool heavy = o.momentum != 0;
  const double joins = before.empty() ? 1 : 1 - o.dampening;
  // The direction without momentum.
  const auto plain = [=, &o, gradient = clipped_gradient(tracked), value = tracked.value](
                         size_t first, size_t count, Block& due) {
    std::array<double, kBlock> w;
    gradient(first, count, due.value.data());
    value.read(first, count, w.data());
    for (size_t i = 0; i < count; ++i) {
      const double decay = o.weight_decay * w[i];
      due.magnitude[i] = std::fabs(due.value[i]) + std::fabs(decay);
      due.value[i] += decay;
    }
  };
  const auto buffer = [=, &o](size_t first, size_t count, Block& due) {
    std::array<double, kBlock> b;
    plain(first, count, due);
    before.read(first, count, b.data());
    for (size_t i = 0; i < count; ++i) {
      due.value[i] = held_in(largest, o.momentum * b[i] + joins * due.value[i]);
      due.magnitude[i] = std::fabs(o.momentum * b[i]) + joins * due.magnitude[i];
    }
  };
  if (heavy) tracked.expected[ObservationKind::kMomentumBuffer] = buffer;
  return [=, &o, value = tracked.value](size_t first, size_t count, Block& due) {
    Block moved;
    std::array<double, kBlock> w;
    plain(first, count, due);
    if (heavy) buffer(first, count, moved);
    value.read(first, count, w.data());
    for (size_t i = 0; i < count; ++i) {
      const double direction = o.nesterov && heavy ? due.value[i] + o.momentum * moved.value[i]
                               : heavy             ? moved.value[i]
                                                   : due.value[i];
      due.value[i] = w[i] - rate * direction;
      due.magnitude[i] =
          std::fabs(w[i]) + rate * (due.magnitude[i] + (heavy ? moved.magnitude[i] : 0));
    }
  };
}

std::string OwnOptimizer::compare(const Expected& expected, const at::Tensor& local) {
  const double eps = local.scalar_type() == at::kDouble ? kFloat64Eps : 0x1p-23;
  const double largest = largest_of(local.scalar_type());
  judged_ += local.numel();
  size_t wrong = 0;
  double worst_ratio = -1;
  std::string worst;
  for_blocks<kBlock>(local, [&](size_t first, size_t count, const double* actual) {
    Block block;
    expected(first, count, block);
    if (all_within(kOwnRoundings * eps, largest, actual, block, count)) return;
    for (size_t i = 0; i < count; ++i) {
      const double due = held_in(largest, block.value[i]);
      const double error = std::fabs(actual[i] - due);
      const double allowance =
          kOwnRoundings * eps * block.magnitude[i] + std::numeric_limits<float>::denorm_min();
      const bool both_nan = std::isnan(actual[i]) && std::isnan(due);
      const bool within = std::isfinite(due) && std::isfinite(allowance) && error <= allowance;
      if (within || actual[i] == due || both_nan) continue;
      ++wrong;
      const double ratio =
          std::isfinite(error) && std::isfinite(allowance) ? error / allowance : HUGE_VAL;
      if (ratio <= worst_ratio) continue;
      worst_ratio = ratio;
      worst =
          fmt::format("local offset {} is {:.9g} and should be {:.9g}", first + i, actual[i], due);
    }
  });
  if (wrong == 0) return "";
  return fmt::format(
      "does not follow from the rank's own gradient, norm and state before the step: {} of {} "
      "elements, the worst at {}",
      wrong, local.numel(), worst);
}

}  // namespace shardproof::sim::judge
