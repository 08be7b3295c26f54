// The two layers of tensor-parallel inference, and the path that joins one to the next.
//
//   NormColumn   x [S_tp, B, E] -> RMSNorm -> all_gather over S -> W_tp x [S, B, F_tp]
//   RowScatter   x [S, B, F_tp] -> W_tp x {U_tp} -> reduce_scatter over S -> y [S_tp, B, E]
//   joined       RowScatter .. + residual -> RMSNorm of the next NormColumn -> its all_gather
//
// The joined path reads the reduce-scatter's result once: addition, mean square and scaling of a
// token's row happen while the row is in the cache. The next NormColumn gets the gathered rows and
// skips its norm and gather.
//
// There are no gradients. Between the layers the sequence is cut over tp, so tp must divide S; an
// axis of one rank communicates nothing.
//
// Legend: S tokens (dim 0), B batch, E width, F features; S_tp, F_tp this rank's part, {U_tp} not
// yet summed.
// Source: Megatron-LM inference_layers.py, InferenceLayerNormColumnParallelLinear,
// InferenceRowParallelLinear. Its joined path overwrites the caller's residual and passes the
// gathered rows on in a global buffer; here both are results.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "comm/communicator.h"

namespace shardproof {

// Returns x [.., E] * rsqrt(mean(x^2) + eps) * weight [E], computed in float32 (float64 for
// float64). Throws Error(kBadInput) as add_rms_norm does.
at::Tensor inference_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// An addition and the norm of its result.
struct AddedNorm {
  at::Tensor sum;     // addend + residual, in their type
  at::Tensor normed;  // inference_rms_norm(sum, weight, eps)
};

// Adds and norms in one pass over the rows, on the CPU except for float16, and on a GPU if the
// kernels were built (cuda_kernels.h); else in two steps. addend, residual [.., E], any strides,
// weight [E], all of one type (float16, bfloat16, float32, float64) on one device. Throws
// Error(kBadInput) when shapes, types or devices do not fit.
AddedNorm add_rms_norm(const at::Tensor& addend, const at::Tensor& residual,
                       const at::Tensor& weight, double eps);

// add_rms_norm for an addend that nobody reads again: where it takes one pass, the sum overwrites a
// contiguous addend, so that only the norm takes new memory.
AddedNorm add_rms_norm_over_addend(at::Tensor addend, const at::Tensor& residual,
                                   const at::Tensor& weight, double eps);

// Throws the errors of add_rms_norm. `residual` may be null.
void check_norm_inputs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor* residual);

class InferenceNormColumn {
 public:
  // norm_weight [E], weight [F_tp, E]. `tp` must outlive the layer.
  InferenceNormColumn(at::Tensor norm_weight, at::Tensor weight, double eps, Communicator& tp,
                      std::string label);
  at::Tensor forward(const at::Tensor& x) const;                // [S_tp, B, E] -> [S, B, F_tp]
  at::Tensor forward_normed(const at::Tensor& gathered) const;  // [S, B, E] -> [S, B, F_tp]
  const at::Tensor& norm_weight() const { return norm_weight_; }
  double eps() const { return eps_; }
  const std::string& label() const { return label_; }

 private:
  at::Tensor norm_weight_, weight_;
  double eps_;
  Communicator& tp_;
  std::string label_;
};

// The results of the joined path.
struct JoinedRows {
  at::Tensor residual;  // [S_tp, B, E], the residual plus the layer's output
  at::Tensor gathered;  // [S, B, E] normed, for InferenceNormColumn::forward_normed
};

class InferenceRowScatter {
 public:
  // weight [E, F_tp]. `tp` must outlive the layer.
  InferenceRowScatter(at::Tensor weight, Communicator& tp, std::string label);
  // [S, B, F_tp] -> [S_tp, B, E]. Throws Error(kRefused) when tp does not divide S.
  at::Tensor forward(const at::Tensor& x) const;
  // forward(x) plus residual [S_tp, B, E], then the norm and gather of `next`.
  JoinedRows forward_joined(const at::Tensor& x, const at::Tensor& residual,
                            const InferenceNormColumn& next) const;

 private:
  at::Tensor weight_;
  Communicator& tp_;
  std::string label_;
};

}  // namespace shardproof
