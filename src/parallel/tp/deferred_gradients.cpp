#include "parallel/tp/deferred_gradients.h"

#include <ATen/ATen.h>

#include "model/precision.h"

namespace shardproof {

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
