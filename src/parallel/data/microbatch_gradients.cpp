#include "parallel/data/microbatch_gradients.h"

#include <ATen/ATen.h>

#include <memory>
#include <set>

#include "model/precision.h"

namespace shardproof {

void use_main_gradients(Decoder& model) {
  std::set<ParameterPtr> embedded;  // autograd holds the gradients of this use
  for (const Slot* slot : model.slots()) {
    if (slot->kind() != SlotKind::kEmbedding) continue;
    for (const ParameterPtr& parameter : slot->layer->parameters()) embedded.insert(parameter);
  }
  for (const Slot* slot : model.slots()) {
    if (slot->kind() != SlotKind::kLinear && slot->kind() != SlotKind::kLmHead) continue;
    const ParameterPtr weight = slot->layer->parameters().front();
    if (!weight->trainable) continue;
    weight->main_gradient = std::make_shared<MainGradient>(
        MainGradient{.wants_dummy = true, .zero_dummy = embedded.contains(weight)});
  }
}

void MicrobatchGradients::begin(const std::vector<ParameterPtr>& parameters) {
  for (const ParameterPtr& parameter : parameters) {
    if (!parameter->main_gradient || parameter->main_gradient->sum.defined()) continue;
    const at::Tensor leaf = parameter->tensor.detach();
    parameter->main_gradient->sum =
        at::zeros_like(leaf, leaf.options().dtype(wider_type(leaf.scalar_type())));
  }
}

void MicrobatchGradients::keep(const std::vector<ParameterPtr>& parameters) {
  const at::NoGradGuard no_grad;
  kept_.resize(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& leaf = parameters[i]->tensor;
    const auto& main = parameters[i]->main_gradient;
    if (main && main->sum.defined()) {
      finish_main_gradient(leaf, *main);
      continue;
    }
    const at::Tensor grad = leaf.grad();
    const at::ScalarType wide = wider_type(leaf.scalar_type());
    if (!grad.defined() || leaf.scalar_type() == wide) continue;
    leaf.mutable_grad() = at::Tensor();
    if (kept_[i].defined()) {
      kept_[i].add_(grad);
    } else {
      kept_[i] = grad.detach().to(wide);
    }
  }
}

std::vector<at::Tensor> MicrobatchGradients::take(const std::vector<ParameterPtr>& parameters) {
  const at::NoGradGuard no_grad;
  keep(parameters);
  std::vector<at::Tensor> grads;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (const auto& main = parameters[i]->main_gradient) kept_[i] = main->sum;
    grads.push_back(kept_[i].defined() ? kept_[i] : gradient_of(*parameters[i]));
    parameters[i]->tensor.mutable_grad() = at::Tensor();
  }
  drop(parameters);
  return grads;
}

void MicrobatchGradients::drop(const std::vector<ParameterPtr>& parameters) {
  kept_.clear();
  for (const ParameterPtr& parameter : parameters) {
    if (const auto& main = parameter->main_gradient) {
      main->sum = at::Tensor();
      main->added = false;
    }
  }
}

}  // namespace shardproof
