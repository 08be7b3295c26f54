#include "optim/optimizer.h"

#include <ATen/ATen.h>

#include <cmath>

#include "base/error.h"

namespace shardproof {
namespace {

void adamw_step(const at::Tensor& parameter, const at::Tensor& grad, OptimizerState& state,
                const OptimizerOptions& options) {
  if (!state.exp_avg.defined()) {
    state.exp_avg = at::zeros_like(parameter);
    state.exp_avg_sq = at::zeros_like(parameter);
  }
  const double correction1 = 1 - std::pow(options.beta1, static_cast<double>(state.step));
  const double correction2 = 1 - std::pow(options.beta2, static_cast<double>(state.step));
  parameter.mul_(1 - options.lr * options.weight_decay);
  state.exp_avg.mul_(options.beta1).add_(grad, 1 - options.beta1);
  state.exp_avg_sq.mul_(options.beta2).addcmul_(grad, grad, 1 - options.beta2);
  const at::Tensor denominator =
      state.exp_avg_sq.sqrt().div_(std::sqrt(correction2)).add_(options.eps);
  parameter.addcdiv_(state.exp_avg, denominator, -options.lr / correction1);
}

void sgd_step(const at::Tensor& parameter, const at::Tensor& grad, OptimizerState& state,
              const OptimizerOptions& options) {
  at::Tensor direction = grad;
  if (options.weight_decay != 0) direction = grad.add(parameter, options.weight_decay);
  if (options.momentum != 0) {
    if (state.momentum_buffer.defined()) {
      state.momentum_buffer.mul_(options.momentum).add_(direction, 1 - options.dampening);
    } else {
      state.momentum_buffer = direction.clone();
    }
    direction = options.nesterov ? direction.add(state.momentum_buffer, options.momentum)
                                 : state.momentum_buffer;
  }
  parameter.add_(direction, -options.lr);
}

}  // namespace

void optimizer_step(const at::Tensor& parameter, const at::Tensor& grad, OptimizerState& state,
                    const OptimizerOptions& options) {
  SHARDPROOF_ASSERT(parameter.sizes() == grad.sizes(), "a gradient has its parameter's shape");
  SHARDPROOF_ASSERT(parameter.scalar_type() == grad.scalar_type(),
                    "a gradient has its (master) parameter's dtype");
  const at::NoGradGuard no_grad;
  ++state.step;
  if (options.kind == OptimizerKind::kSgd) {
    sgd_step(parameter, grad, state, options);
  } else {
    adamw_step(parameter, grad, state, options);
  }
}

}  // namespace shardproof
