// The plain linear layer, y = x W^T + b, and the plain token embedding.
#include <ATen/ATen.h>

#include "model/decoder.h"

namespace shardproof {

at::Tensor Linear::forward(at::TensorList inputs, const StepContext&) {
  const at::Tensor added = bias ? bias->tensor : at::Tensor();
  if (weight->main_gradient && weight->tensor.requires_grad()) {
    return accumulating_linear(inputs[0], weight->tensor, added, weight->main_gradient);
  }
  return at::linear(inputs[0], weight->tensor, added);
}

std::vector<ParameterPtr> Linear::parameters() const {
  if (!bias) return {weight};
  return {weight, bias};
}

at::Tensor Embedding::forward(at::TensorList inputs, const StepContext&) {
  return at::embedding(weight->tensor, inputs[0], pad_token_id);
}

}  // namespace shardproof
