#include "golden/witness_optimizer.h"

#include <fmt/format.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <limits>

#include "base/error.h"
#include "sim/case/names.h"

namespace shardproof::golden {
namespace {

std::unique_ptr<torch::optim::Optimizer> make(const sim::OptimizerSpec& spec,
                                              const std::vector<at::Tensor>& masters) {
  if (spec.kind == OptimizerKind::kAdamW) {
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

WitnessOptimizer::WitnessOptimizer(const sim::OptimizerSpec& spec, std::vector<at::Tensor> masters)
    : max_norm_(spec.max_norm > 0 ? spec.max_norm : std::numeric_limits<double>::infinity()),
      norm_type_(spec.norm_type == "inf" ? std::numeric_limits<double>::infinity()
                                         : std::stod(spec.norm_type)),
      masters_(std::move(masters)),
      optimizer_(make(spec, masters_)) {}

WitnessOptimizer::~WitnessOptimizer() = default;

double WitnessOptimizer::step(std::vector<at::Tensor> grads, double learning_rate) {
  SHARDPROOF_ASSERT(grads.size() == masters_.size(), "one gradient per parameter");
  for (size_t i = 0; i < grads.size(); ++i) {
    masters_[i].mutable_grad() = std::move(grads[i]);
  }
  const double norm = torch::nn::utils::clip_grad_norm_(masters_, max_norm_, norm_type_);
  for (auto& group : optimizer_->param_groups()) group.options().set_lr(learning_rate);
  optimizer_->step();
  for (at::Tensor& master : masters_) master.mutable_grad() = at::Tensor();
  return norm;
}

struct WitnessOptimizer::Saved {
  std::vector<at::Tensor> masters;
  std::vector<std::unique_ptr<ParamState>> states;  // null: no step yet
};

std::shared_ptr<const WitnessOptimizer::Saved> WitnessOptimizer::save() const {
  auto saved = std::make_shared<Saved>();
  for (const at::Tensor& master : masters_) {
    saved->masters.push_back(master.detach().clone());
    const auto found = optimizer_->state().find(master.unsafeGetTensorImpl());
    saved->states.push_back(found == optimizer_->state().end() ? nullptr : copy_of(*found->second));
  }
  return saved;
}

void WitnessOptimizer::load(const Saved& saved) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < masters_.size(); ++i) {
    masters_[i].copy_(saved.masters[i]);
    void* key = masters_[i].unsafeGetTensorImpl();
    optimizer_->state().erase(key);
    if (saved.states[i]) optimizer_->state()[key] = copy_of(*saved.states[i]);
  }
}

std::vector<std::pair<ObservationKind, at::Tensor>> WitnessOptimizer::state_of(size_t index) const {
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
