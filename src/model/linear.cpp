// The plain linear layer: y = x W^T + b.
#include <ATen/ATen.h>

#include "model/decoder.h"

namespace shardproof {

at::Tensor Linear::forward(at::TensorList inputs, const StepContext&) {
  return at::linear(inputs[0], weight->tensor, bias ? bias->tensor : at::Tensor());
}

std::vector<ParameterPtr> Linear::parameters() const {
  if (!bias) return {weight};
  return {weight, bias};
}

}  // namespace shardproof
