// The plain linear layer, y = x W^T + b, and the plain token embedding.
#include <ATen/ATen.h>

#include "model/decoder.h"
#include "model/open_weights.h"

namespace shardproof {

at::Tensor Linear::forward(at::TensorList inputs, const StepContext& context) {
  return apply_linear(inputs[0], weight, bias ? bias->tensor : at::Tensor(), context);
}

std::vector<ParameterPtr> Linear::parameters() const {
  if (!bias) return {weight};
  return {weight, bias};
}

at::Tensor Embedding::forward(at::TensorList inputs, const StepContext&) {
  return at::embedding(weight->tensor, inputs[0], pad_token_id);
}

}  // namespace shardproof
