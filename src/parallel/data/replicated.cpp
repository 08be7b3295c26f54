#include "parallel/data/replicated.h"

#include <ATen/ATen.h>

#include <set>

#include "model/precision.h"
#include "parallel/data/replicate.h"

namespace shardproof {
namespace {

// Gives every trained weight of a linear a main gradient. Its buffer has no memory yet.
void use_main_gradients(Decoder& model) {
  std::set<ParameterPtr> embedded;  // autograd holds the gradients of this use
  for (const Slot* slot : model.slots(SlotKind::kEmbedding)) {
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

}  // namespace

ReplicatedModel::ReplicatedModel(const StoreSetup& setup, GradientPlace gradients)
    : parameters_(setup.model.parameters()), comm_(setup.comm), token_axes_(setup.token_axes) {
  if (gradients == GradientPlace::kMain) use_main_gradients(setup.model);
}

void ReplicatedModel::before(const Action& action, Complete) {
  if (action.kind != Action::Kind::kForward) return;
  for (const ParameterPtr& parameter : parameters_) {
    if (!parameter->main_gradient || parameter->main_gradient->sum.defined()) continue;
    const at::Tensor leaf = parameter->tensor.detach();
    parameter->main_gradient->sum =
        at::zeros_like(leaf, leaf.options().dtype(wider_type(leaf.scalar_type())));
  }
}

void ReplicatedModel::after(const Action& action, Complete) {
  if (action.kind != Action::Kind::kForward) keep_gradients();
}

// Leaves of the wider type keep their gradients.
void ReplicatedModel::keep_gradients() {
  const at::NoGradGuard no_grad;
  kept_.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& leaf = parameters_[i]->tensor;
    const auto& main = parameters_[i]->main_gradient;
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

std::vector<at::Tensor> ReplicatedModel::take_gradients() {
  const at::NoGradGuard no_grad;
  keep_gradients();
  std::vector<at::Tensor> grads;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (const auto& main = parameters_[i]->main_gradient) kept_[i] = main->sum;
    grads.push_back(kept_[i].defined() ? kept_[i] : gradient_of(*parameters_[i]));
    parameters_[i]->tensor.mutable_grad() = at::Tensor();
  }
  abandon_step();
  return grads;
}

void ReplicatedModel::average(std::vector<at::Tensor>& grads) {
  average_parameter_gradients(parameters_, grads, comm_, token_axes_);
}

void ReplicatedModel::refresh() {
  const at::NoGradGuard no_grad;
  for (const ParameterPtr& parameter : parameters_) refresh_leaf(*parameter);
}

at::Tensor ReplicatedModel::leaf_of(const Parameter& parameter) const {
  return parameter.master.defined() ? parameter.tensor.detach() : at::Tensor();
}

void ReplicatedModel::abandon_step() {
  kept_.clear();
  for (const ParameterPtr& parameter : parameters_) {
    if (const auto& main = parameter->main_gradient) {
      main->sum = at::Tensor();
      main->added = false;
    }
  }
}

}  // namespace shardproof
