#include "parallel/data/microbatch_gradients.h"

#include <ATen/ATen.h>

#include "model/precision.h"

namespace shardproof {

void MicrobatchGradients::keep(const std::vector<ParameterPtr>& parameters) {
  const at::NoGradGuard no_grad;
  kept_.resize(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& leaf = parameters[i]->tensor;
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
    grads.push_back(kept_[i].defined() ? kept_[i] : gradient_of(*parameters[i]));
    parameters[i]->tensor.mutable_grad() = at::Tensor();
  }
  drop();
  return grads;
}

}  // namespace shardproof
