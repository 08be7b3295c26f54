#include "model/main_gradient.h"

#include <ATen/ATen.h>

namespace shardproof {

void add_weight_gradient(const at::Tensor& sum, const at::Tensor& grad_output,
                         const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = grad_output.flatten(0, -2).to(sum.scalar_type());
  sum.addmm_(rows.t(), input.flatten(0, -2).to(sum.scalar_type()));
}

void finish_main_gradient(const at::Tensor& weight, MainGradient& gradient) {
  const at::NoGradGuard no_grad;
  const at::Tensor grad = weight.grad();
  if (grad.defined() && (!gradient.added || gradient.zero_dummy)) gradient.sum.add_(grad);
  weight.mutable_grad() = at::Tensor();
  gradient.added = false;
}

}  // namespace shardproof
