#include "golden/witness_optimizer.h"

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <limits>

#include "base/error.h"
#include "golden/muon.h"
#include "sim/case/names.h"

namespace shardproof::golden {
namespace {

std::unique_ptr<torch::optim::Optimizer> make(const sim::OptimizerSpec& spec,
                                              const std::vector<at::Tensor>& masters) {
  if (spec.kind != OptimizerKind::kSgd) {
    return std::make_unique<torch::optim::AdamW>(masters, torch::optim::AdamWOptions(spec.lr)
                                                              .betas({spec.beta1, spec.beta2})
                                                              .eps(spec.eps)
                                                              .weight_decay(spec.weight_decay));
  }
  return std::make_unique<torch::optim::SGD>(masters, torch::optim::SGDOptions(spec.lr)
                                                          .momentum(spec.momentum)
                                                          .dampening(spec.dampening)
                                                          .nesterov(spec.nesterov)
                                                          .weight_decay(spec.weight_decay));
}

using ParamState = torch::optim::OptimizerParamState;

// A deep copy: the state's clone() shares its tensors.
std::unique_ptr<ParamState> copy_of(const ParamState& state) {
  std::unique_ptr<ParamState> copy = state.clone();
  if (auto* adam = dynamic_cast<torch::optim::AdamWParamState*>(copy.get())) {
    adam->exp_avg(adam->exp_avg().clone());
    adam->exp_avg_sq(adam->exp_avg_sq().clone());
  } else if (auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(copy.get())) {
    if (sgd->momentum_buffer().defined()) sgd->momentum_buffer(sgd->momentum_buffer().clone());
  }
  return copy;
}

}  // namespace

WitnessOptimizer::WitnessOptimizer(const sim::OptimizerSpec& spec, std::vector<at::Tensor> masters,
                                   std::vector<std::string> names)
    : spec_(spec),
      max_norm_(spec.max_norm > 0 ? spec.max_norm : std::numeric_limits<double>::infinity()),
      norm_type_(spec.norm_type == "inf" ? std::numeric_limits<double>::infinity()
                                         : std::stod(spec.norm_type)),
      masters_(std::move(masters)),
      names_(std::move(names)),
      momenta_(masters_.size()),
      directions_(masters_.size()) {
  std::vector<at::Tensor> others;
  for (size_t i = 0; i < masters_.size(); ++i) {
    has_muon_.push_back(spec.kind == OptimizerKind::kMuon &&
                        is_hidden_matrix(names_[i], masters_[i]));
    if (!has_muon_[i]) others.push_back(masters_[i]);
  }
  optimizer_ = make(spec, others);
}

WitnessOptimizer::~WitnessOptimizer() = default;

double WitnessOptimizer::step(std::vector<at::Tensor> grads, double learning_rate) {
  SHARDPROOF_ASSERT(grads.size() == masters_.size(), "one gradient per parameter");
  for (size_t i = 0; i < grads.size(); ++i) {
    masters_[i].mutable_grad() = std::move(grads[i]);
  }
  const double norm = torch::nn::utils::clip_grad_norm_(masters_, max_norm_, norm_type_);
  for (auto& group : optimizer_->param_groups()) group.options().set_lr(learning_rate);
  optimizer_->step();
  for (size_t i = 0; i < masters_.size(); ++i) {
    if (has_muon_[i] && masters_[i].grad().defined()) step_of_muon(i, learning_rate);
  }
  for (at::Tensor& master : masters_) master.mutable_grad() = at::Tensor();
  return norm;
}

void WitnessOptimizer::step_of_muon(size_t index, double learning_rate) {
  const at::NoGradGuard no_grad;
  const double share = spec_.momentum;
  const at::Tensor& grad = masters_[index].grad();
  at::Tensor& momentum = momenta_[index];
  const at::Tensor fresh = grad * (1 - share);
  momentum = momentum.defined() ? momentum * share + fresh : fresh;
  directions_[index] = spec_.nesterov ? momentum * share + fresh : momentum;
  const at::Tensor decayed = masters_[index] * (1 - learning_rate * spec_.weight_decay);
  masters_[index].copy_(decayed - muon_update(names_[index], directions_[index]) * learning_rate);
}

struct WitnessOptimizer::Saved {
  std::vector<at::Tensor> masters;
  std::vector<std::unique_ptr<ParamState>> states;  // null: no step yet, or Muon
  std::vector<at::Tensor> momenta;                  // of Muon; no step changes them in place
};

std::shared_ptr<const WitnessOptimizer::Saved> WitnessOptimizer::save() const {
  auto saved = std::make_shared<Saved>();
  saved->momenta = momenta_;
  for (const at::Tensor& master : masters_) {
    saved->masters.push_back(master.detach().clone());
    const auto found = optimizer_->state().find(master.unsafeGetTensorImpl());
    saved->states.push_back(found == optimizer_->state().end() ? nullptr : copy_of(*found->second));
  }
  return saved;
}

void WitnessOptimizer::load(const Saved& saved) {
  const at::NoGradGuard no_grad;
  momenta_ = saved.momenta;
  for (size_t i = 0; i < masters_.size(); ++i) {
    masters_[i].copy_(saved.masters[i]);
    void* key = masters_[i].unsafeGetTensorImpl();
    optimizer_->state().erase(key);
    if (saved.states[i]) optimizer_->state()[key] = copy_of(*saved.states[i]);
  }
}

std::vector<std::pair<ObservationKind, at::Tensor>> WitnessOptimizer::state_of(size_t index) const {
  if (momenta_[index].defined()) return {{ObservationKind::kMomentumBuffer, momenta_[index]}};
  const auto& states = optimizer_->state();
  const auto found = states.find(masters_[index].unsafeGetTensorImpl());
  if (found == states.end()) return {};
  if (const auto* adam = dynamic_cast<torch::optim::AdamWParamState*>(found->second.get())) {
    return {{ObservationKind::kExpAvg, adam->exp_avg()},
            {ObservationKind::kExpAvgSq, adam->exp_avg_sq()}};
  }
  if (const auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(found->second.get())) {
    if (sgd->momentum_buffer().defined())
      return {{ObservationKind::kMomentumBuffer, sgd->momentum_buffer()}};
  }
  return {};
}

}  // namespace shardproof::golden
