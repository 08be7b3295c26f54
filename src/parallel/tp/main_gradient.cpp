#include "parallel/tp/main_gradient.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "model/precision.h"

namespace shardproof {

void finish_main_gradient(const at::Tensor& weight, MainGradient& gradient) {
  const at::NoGradGuard no_grad;
  const at::Tensor grad = weight.grad();
  if (grad.defined() && (!gradient.added || gradient.zero_dummy)) gradient.sum.add_(grad);
  weight.mutable_grad() = at::Tensor();
  gradient.added = false;
}

void add_weight_gradient(const at::Tensor& sum, const at::Tensor& grad_output,
                         const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = grad_output.reshape({-1, grad_output.size(-1)}).to(sum.scalar_type());
  sum.addmm_(rows.t(), input.reshape({-1, input.size(-1)}).to(sum.scalar_type()));
}

void DeferredWeightGradients::finish(const at::Tensor& weight, MainGradient* gradient,
                                     Communicator& tp, const std::string& label) {
  const at::NoGradGuard no_grad;
  const at::ScalarType narrow = weight.scalar_type();
  at::Tensor sum;
  if (gradient != nullptr) {
    sum = gradient->sum;
  } else if (weight.grad().defined()) {
    sum = weight.grad().to(wider_type(narrow));
  } else {
    sum = at::zeros(weight.sizes(), weight.options().dtype(wider_type(narrow)));
  }
  for (const DeferredProduct& product : products_) {
    const at::Tensor input =
        product.sequence_dim < 0
            ? product.input
            : tp.all_gather(product.input, product.sequence_dim, label + " deferred");
    add_weight_gradient(sum, product.grad_output, input);
  }
  if (gradient == nullptr) weight.mutable_grad() = sum.to(narrow);
  products_.clear();
}

}  // namespace shardproof
