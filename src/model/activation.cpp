// The elementwise layers: the gated activations of the MLP and the residual sum.
#include <ATen/ATen.h>

#include "model/decoder.h"

namespace shardproof {

at::Tensor SiluGate::forward(at::TensorList inputs, const StepContext&) {
  return at::silu(inputs[0]) * inputs[1];
}

at::Tensor GeluTanhGate::forward(at::TensorList inputs, const StepContext&) {
  return at::gelu(inputs[0], "tanh") * inputs[1];
}

at::Tensor Residual::forward(at::TensorList inputs, const StepContext&) {
  return inputs[0] + inputs[1];
}

}  // namespace shardproof
