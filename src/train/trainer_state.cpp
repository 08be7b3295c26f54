// The state of a trainer between steps: masters and optimizer state, and how it changes.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "tensor/memory.h"
#include "train/router_training.h"
#include "train/trainer.h"
#include "train/whole_matrices.h"

namespace shardproof {
namespace {

// After its first step AdamW has moments and Muon momentum; SGD never has moments.
bool is_of(const OptimizerState& state, OptimizerKind kind) {
  const bool moments = state.exp_avg.defined(), momentum = state.momentum_buffer.defined();
  if (kind == OptimizerKind::kSgd) return !moments;
  const bool adamw = kind == OptimizerKind::kAdamW;
  return (adamw ? !momentum : !moments) && (moments || momentum || state.step == 0);
}

OptimizerKind owner_of(const std::vector<OptimizerState>& states) {
  const auto any = [&](at::Tensor OptimizerState::*tensor) {
    return std::any_of(states.begin(), states.end(),
                       [&](const OptimizerState& state) { return (state.*tensor).defined(); });
  };
  if (!any(&OptimizerState::exp_avg)) return OptimizerKind::kSgd;
  return any(&OptimizerState::momentum_buffer) ? OptimizerKind::kMuon : OptimizerKind::kAdamW;
}

}  // namespace

// Whether Muon updates this parameter.
bool Trainer::has_muon(size_t index) const {
  return options_.optimizer.kind == OptimizerKind::kMuon &&
         !parameters_[index]->matrix_rows.empty();
}

// The momentum and the update of each matrix of Muon, as shards; empty for other parameters, and
// all of them without gradients. Nothing is changed.
std::vector<MuonStep> Trainer::muon_steps(const std::vector<at::Tensor>& grads) {
  const at::NoGradGuard no_grad;
  std::vector<MuonStep> steps(grads.size());
  for (size_t i = 0; i < grads.size(); ++i) {
    const Parameter& parameter = *parameters_[i];
    if (!has_muon(i) || !parameter.trainable) continue;
    steps[i] = muon_direction(grads[i], states_[i], options_.optimizer);
    const WholeMatrix matrix(parameter, setup_.comm, setup_.device);
    const at::Tensor whole = matrix.gather(steps[i].update);
    observe_step(ObservationKind::kWholeMatrix, parameter, whole, &matrix.layout());
    if (whole.numel() == 0) continue;
    steps[i].update = matrix.shard(muon_update(whole, parameter.matrix_rows));
  }
  return steps;
}

// Updates in place, so that no second copy of masters and states is held. Only missing memory can
// stop it half way: it waits for no rank and calls no probe.
void Trainer::update(const std::vector<at::Tensor>& grads, const std::vector<MuonStep>& matrices) {
  const at::NoGradGuard no_grad;
  const bool skipped = grads.empty();
  loss_scale_.update(/*overflow=*/skipped);
  if (skipped) return;
  OptimizerOptions optimizer = options_.optimizer;
  optimizer.lr = schedule_.after(schedule_steps_);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i]->trainable) continue;
    if (has_muon(i)) {
      muon_step(masters_[i], matrices[i], states_[i], optimizer);
    } else {
      optimizer_step(masters_[i], grads[i], states_[i], optimizer);
    }
  }
  routers_->move_biases(parameters_, masters_);
  store_->refresh();
  gradient_bytes_ = memory_of(grads);
}

void Trainer::observe_state() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = *parameters_[i];
    observe_step(ObservationKind::kParameter, parameter, masters_[i], nullptr,
                 store_->leaf_of(parameter));
    observe_step(ObservationKind::kExpAvg, *parameters_[i], states_[i].exp_avg);
    observe_step(ObservationKind::kExpAvgSq, *parameters_[i], states_[i].exp_avg_sq);
    observe_step(ObservationKind::kMomentumBuffer, *parameters_[i], states_[i].momentum_buffer);
  }
}

void Trainer::check_states(const std::vector<OptimizerState>& states) const {
  SHARDPROOF_ASSERT(states.size() == states_.size(), "a state for each parameter");
  const OptimizerKind kind = options_.optimizer.kind;
  for (size_t i = 0; i < states.size(); ++i) {
    const bool adamw = kind == OptimizerKind::kMuon && !has_muon(i);
    const OptimizerKind own = adamw ? OptimizerKind::kAdamW : kind;
    if (is_of(states[i], own)) continue;
    if (const OptimizerKind owner = owner_of(states); owner != kind) {
      throw_bad_input(
          fmt::format("the saved optimizer state is {}'s, the trainer has {}", owner, kind),
          "train on with the optimizer that saved it");
    }
    throw_bad_input(
        fmt::format("the saved optimizer state of {} has no tensors of {}, as others do",
                    parameters_[i]->name, own),
        "save the states of all parameters under the names that a load looks for");
  }
}

void Trainer::restore(const std::vector<at::Tensor>& masters, std::vector<OptimizerState> states,
                      int64_t step, std::optional<int64_t> schedule_steps) {
  check_states(states);
  set_masters(masters);
  states_ = std::move(states);
  step_ = step;
  schedule_steps_ = schedule_steps.value_or(step);
}

void Trainer::set_masters(const std::vector<at::Tensor>& masters) {
  settle();
  copy_masters(masters);
}

void Trainer::copy_masters(const std::vector<at::Tensor>& masters) {
  SHARDPROOF_ASSERT(masters.size() == masters_.size(), "a master for each parameter");
  const at::NoGradGuard no_grad;
  store_->settle();  // it waits only for gradients of a backward that threw
  for (size_t i = 0; i < masters.size(); ++i) masters_[i].copy_(masters[i]);
  store_->refresh();
}

void Trainer::settle() {
  store_->settle();
  runner_->settle();
}

HeldBytes Trainer::held_bytes() const {
  std::vector<at::Tensor> parameters = masters_, optimizer;
  for (const ParameterPtr& parameter : parameters_) parameters.push_back(parameter->tensor);
  for (const OptimizerState& state : states_) {
    optimizer.insert(optimizer.end(), {state.exp_avg, state.exp_avg_sq, state.momentum_buffer});
  }
  return {.parameters = memory_of(parameters),
          .gradients = gradient_bytes_,
          .optimizer = memory_of(optimizer)};
}

}  // namespace shardproof
