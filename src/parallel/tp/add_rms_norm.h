// An addition and the RMSNorm of its result in one pass over the rows: a row's sum, mean square and
// scaling happen while the row is in the cache. There are no gradients.
#pragma once

#include <ATen/core/Tensor.h>

namespace shardproof {

// Returns x [.., E] * rsqrt(mean(x^2) + eps) * weight [E], computed in float32 (float64 for
// float64). Throws Error(kBadInput) as add_rms_norm does.
at::Tensor inference_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

struct AddedNorm {
  at::Tensor sum;     // addend + residual, in their type
  at::Tensor normed;  // inference_rms_norm(sum, weight, eps)
};

// Takes one pass on the CPU except for float16, and on a GPU if the kernels were built
// (cuda_kernels.h); else two steps. addend, residual [.., E], any strides, weight [E], all of one
// type (float16, bfloat16, float32, float64) on one device. Throws Error(kBadInput) when shapes,
// types or devices do not fit.
AddedNorm add_rms_norm(const at::Tensor& addend, const at::Tensor& residual,
                       const at::Tensor& weight, double eps);

}  // namespace shardproof
