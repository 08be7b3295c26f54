// The state of a trainer between steps: masters and optimizer state, and how it changes.
#include <ATen/ATen.h>

#include "base/error.h"
#include "tensor/memory.h"
#include "train/trainer.h"

namespace shardproof {
namespace {

// AdamW has moments after its first step, and SGD never.
void check_of_optimizer(const OptimizerState& state, OptimizerKind kind) {
  const bool adamw = kind == OptimizerKind::kAdamW;
  const bool moments = state.exp_avg.defined();
  if (adamw ? !state.momentum_buffer.defined() && (moments || state.step == 0) : !moments) return;
  throw_bad_input(std::string("the saved optimizer state is ") +
                      (adamw ? "SGD's, the trainer has AdamW" : "AdamW's, the trainer has SGD"),
                  "train on with the optimizer that saved it");
}

}  // namespace

// Updates in place, so that no second copy of masters and states is held. Only missing memory can
// stop it half way: it waits for no rank and calls no probe.
void Trainer::update(const std::vector<at::Tensor>& grads) {
  const at::NoGradGuard no_grad;
  const bool skipped = grads.empty();
  loss_scale_.update(/*overflow=*/skipped);
  if (skipped) return;
  OptimizerOptions optimizer = options_.optimizer;
  optimizer.lr = schedule_.after(schedule_steps_);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i]->trainable) continue;
    optimizer_step(masters_[i], grads[i], states_[i], optimizer);
  }
  store_->refresh();
  gradient_bytes_ = memory_of(grads);
}

void Trainer::observe_state() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    observe_step(ObservationKind::kParameter, *parameters_[i], masters_[i]);
    observe_step(ObservationKind::kExpAvg, *parameters_[i], states_[i].exp_avg);
    observe_step(ObservationKind::kExpAvgSq, *parameters_[i], states_[i].exp_avg_sq);
    observe_step(ObservationKind::kMomentumBuffer, *parameters_[i], states_[i].momentum_buffer);
  }
}

void Trainer::restore(const std::vector<at::Tensor>& masters, std::vector<OptimizerState> states,
                      int64_t step, std::optional<int64_t> schedule_steps) {
  SHARDPROOF_ASSERT(states.size() == states_.size(), "a state for each parameter");
  for (const OptimizerState& state : states) check_of_optimizer(state, options_.optimizer.kind);
  set_masters(masters);
  states_ = std::move(states);
  step_ = step;
  schedule_steps_ = schedule_steps.value_or(step);
}

void Trainer::set_masters(const std::vector<at::Tensor>& masters) {
  SHARDPROOF_ASSERT(masters.size() == masters_.size(), "a master for each parameter");
  const at::NoGradGuard no_grad;
  settle();
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
