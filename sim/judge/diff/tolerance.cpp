#include "sim/judge/diff/tolerance.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/case/policy_stages.h"
#include "sim/judge/diff/muon.h"

namespace shardproof::sim::judge {
namespace {

// Parameters and optimizer state. A low-precision run holds them in the wider type
// (model/precision.h), so rounding them down is a fault.
bool is_optimizer_state(const GoldenTensor& golden) {
  return golden.kind == ObservationKind::kParameter || is_moment(golden.kind) ||
         golden.kind == ObservationKind::kWholeMatrix;
}

}  // namespace

double eps_of_precision(Precision precision) {
  constexpr std::array kEps = {kFloat64Eps, 0x1p-23, 0x1p-7, 0x1p-10};  // in the enum's order
  return kEps.at(static_cast<size_t>(precision));
}

double scatter_allowance(const GoldenTensor& golden, double eps) {
  return scatter_allowance(golden.scatter, golden.scale, eps);
}

double scatter_allowance(double scatter, double scale, double eps) {
  const bool hides_half = kLeastScatters * scatter >= scale / 2;
  const double scatters =
      hides_half ? kScatters * scatter
                 : std::clamp(kMostOfScale * scale, kLeastScatters * scatter, kScatters * scatter);
  return std::max(scatters, kFloorRoundings * eps * scale);
}

Tolerance::Tolerance(const CaseSpec& spec, Members members)
    : precision_eps_(spec.precision == Precision::kFloat64 ? 0 : eps_of_precision(spec.precision)),
      members_(members) {}

double Tolerance::lower_precision(const GoldenTensor& golden) const {
  const double scatter = members_ == Members::kFew ? golden.few_scatter : golden.scatter;
  if (precision_eps_ == 0) {
    return scatter > 0 ? scatter_allowance(scatter, golden.scale, kFloat64Eps) : 0;
  }
  const bool wide = is_optimizer_state(golden) || golden.kept_in_float32;
  const double eps = wide ? eps_of_precision(Precision::kFloat32) : precision_eps_;
  return scatter_allowance(scatter, golden.scale, eps);
}

double Tolerance::allowance(const GoldenTensor& golden) const {
  if (!is_floating(golden.value.dtype())) return 0;
  return kRelativeToScale * golden.scale + kPhaseRoundings * kFloat64Eps * golden.phase_scale +
         lower_precision(golden);
}

bool Tolerance::resolves(const GoldenTensor& golden) const {
  if (is_optimizer_state(golden)) return true;
  const double allowed = lower_precision(golden);
  return allowed == 0 || allowed < golden.scale / 2;
}

double Tolerance::fed_allowance(const GoldenTensor& golden) const {
  return kFedRelativeToScale * golden.scale + (precision_eps_ > 0 ? lower_precision(golden) : 0);
}

std::optional<FreeRunningAllowance> FreeRunningAllowance::of(
    const CaseSpec& spec, const GoldenRecord& golden, const GoldenTensor& tensor,
    KnownGradients known, const std::vector<double>& rates, Members members, const Beside& beside) {
  FreeRunningAllowance out;
  if (!is_optimizer_state(tensor)) return std::nullopt;
  out.kind_ = tensor.kind;
  out.optimizer_ = spec.optimizer;
  const Tolerance tolerance(spec, members);
  const std::string gradient =
      observed_name(ObservationKind::kGradient, parameter_of(tensor.kind, tensor.name));
  const GoldenTensor* first = nullptr;
  std::vector<int64_t> made;
  for (const int64_t step : steps_behind(spec, tensor.step)) {
    const GoldenTensor* grad = golden.find(Phase::kStep, step, gradient);
    const GoldenTensor* norm = golden.find(Phase::kStep, step, "grad_norm");
    const bool may_skip = golden.find(Phase::kStep, step, "metric.skipped") != nullptr;
    if (!grad && may_skip) continue;  // an overflow skipped the step
    if (!first) first = grad;
    const bool is_known = grad != nullptr;
    if (!is_known && known == KnownGradients::kFirstStep) grad = first;
    if (!grad || grad->value.sizes() != tensor.value.sizes()) return std::nullopt;
    double clip = 1;
    if (norm && norm->value.numel() == 1 && spec.optimizer.max_norm > 0) {
      clip = std::min(1.0, spec.optimizer.max_norm / (*norm->value.data<double>() + kClipEps));
    }
    const GoldenTensor* rate = golden.find(Phase::kStep, step, "lr");
    double lr = rate ? *rate->value.data<double>() : spec.optimizer.lr;
    if (step <= std::ssize(rates)) lr = rates[static_cast<size_t>(step - 1)];
    const double* values = is_known ? grad->value.data<double>() : nullptr;
    const double more = beside ? beside(*grad) : 0;
    out.steps_.push_back({values, lr, clip, tolerance.allowance(*grad) + more});
    made.push_back(step);
  }
  if (has_muon(spec.optimizer, parameter_of(tensor.kind, tensor.name), tensor.value.sizes())) {
    out.follow_muon(golden, tensor, made);
  }
  return out;
}

void FreeRunningAllowance::follow_muon(const GoldenRecord& golden, const GoldenTensor& tensor,
                                       const std::vector<int64_t>& steps) {
  const std::string parameter = parameter_of(tensor.kind, tensor.name);
  const MuonMatrices matrices = muon_matrices(parameter, tensor.value.sizes());
  matrix_size_ = std::max<int64_t>(1, matrices.size());
  muon_param_.assign(static_cast<size_t>(tensor.value.numel() / matrix_size_), 0.0);
  const double share = optimizer_.momentum;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps_[i];
    const double fresh = (1 - share) * step.clip * step.grad_allowance;
    muon_.momentum = share * muon_.momentum + fresh;
    muon_.whole = optimizer_.nesterov ? share * muon_.momentum + fresh : muon_.momentum;
    const GoldenTensor* whole = golden.find(
        Phase::kStep, steps[i], observed_name(ObservationKind::kWholeMatrix, parameter));
    const double* values = whole ? whole->value.data<double>() : step.grad;
    const double error = 2 * kSteepestOfMuon * muon_.whole * std::sqrt(matrix_size_);
    for (size_t matrix = 0; matrix < muon_param_.size(); ++matrix) {
      double square = 0;
      for (int64_t j = 0; values != nullptr && j < matrix_size_; ++j) {
        const double value = values[static_cast<int64_t>(matrix) * matrix_size_ + j];
        square += value * value;
      }
      muon_param_[matrix] += step.lr * matrices.scale() *
                             std::min(kLargestOfMuon, error / std::max(std::sqrt(square), 1e-7));
    }
  }
}

double FreeRunningAllowance::clipped(const Step& step, int64_t offset) {
  return step.grad ? step.clip * step.grad[offset] : 0;
}

double FreeRunningAllowance::adam_param(int64_t offset) const {
  double added = 0;
  double mean_square = 0;
  double correction = 1;
  for (const Step& step : steps_) {
    const double grad = clipped(step, offset);
    mean_square = optimizer_.beta2 * mean_square + (1 - optimizer_.beta2) * grad * grad;
    correction *= optimizer_.beta2;
    const double size = std::sqrt(mean_square / (1 - correction));
    added += step.lr * std::min(2.0, step.clip * step.grad_allowance / (size + optimizer_.eps));
  }
  return added;
}

double FreeRunningAllowance::at(int64_t offset) const {
  using enum ObservationKind;
  if (!muon_param_.empty()) {
    const auto matrix = static_cast<size_t>(offset / matrix_size_);
    if (kind_ == kParameter) return muon_param_[std::min(matrix, muon_param_.size() - 1)];
    return kind_ == kWholeMatrix ? muon_.whole : muon_.momentum;
  }
  const bool adam = optimizer_.kind != OptimizerKind::kSgd;
  if (kind_ == kParameter && adam) return adam_param(offset);
  const double undamped = 1 / (1 - std::min(optimizer_.momentum, 0.999));
  double sum = 0;
  double largest = 0;
  double largest_lr = 0;  // an early error also counts in later steps, through the momentum
  for (const Step& step : steps_) {
    largest_lr = std::max(largest_lr, step.lr);
    const double grad = std::fabs(clipped(step, offset));
    const double error = step.clip * step.grad_allowance;
    sum += error;
    largest = std::max(largest, kind_ == kExpAvgSq ? (2 * grad + error) * error : error);
  }
  if (kind_ == kParameter) return largest_lr * sum * undamped;
  return kind_ == kMomentumBuffer ? largest * undamped : largest;
}

}  // namespace shardproof::sim::judge
