// Root mean square norm (Zhang and Sennrich, arXiv:1910.07467): x / sqrt(mean(x^2) + eps) * weight,
// over the last dim; Gemma's multiply by 1 + weight.
#include <ATen/ATen.h>

#include "model/decoder.h"

namespace shardproof {

at::Tensor RmsNorm::forward(at::TensorList inputs, const StepContext&) {
  const at::ScalarType dtype = inputs[0].scalar_type(), wide = wider_type(dtype);
  const at::Tensor x = inputs[0].to(wide);
  const at::Tensor normed = x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps);
  const at::Tensor factor = weight->tensor.to(wide);
  return (normed * (unit_offset ? factor + 1.0 : factor)).to(dtype);
}

}  // namespace shardproof
