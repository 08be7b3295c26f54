#include "parallel/tp/inference_pair.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace shardproof {
namespace {

// x W^T, summed over tp and scattered: each rank gets its part of the tokens.
at::Tensor scattered_rows(const at::Tensor& x, const at::Tensor& weight, Communicator& tp,
                          const std::string& label) {
  if (x.size(0) % tp.size() != 0) {
    throw Error({.kind = ErrorKind::kRefused,
                 .what = fmt::format("{} tokens cannot be cut evenly over tp of {} ({})", x.size(0),
                                     tp.size(), label),
                 .fix = "pad the tokens to a multiple of tp"});
  }
  const at::Tensor addend = at::matmul(x, weight.t());
  return tp.reduce_scatter(addend, 0, ReduceOp::kSum, label + " forward");
}

}  // namespace

void check_norm_inputs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor* residual) {
  const at::ScalarType dtype = x.scalar_type();
  const bool known =
      dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kFloat || dtype == at::kDouble;
  const auto like_x = [&](const at::Tensor& other) {
    return other.scalar_type() == dtype && other.device() == x.device();
  };
  const bool fits = x.dim() > 0 && weight.dim() == 1 && weight.size(0) == x.size(-1) &&
                    like_x(weight) &&
                    (residual == nullptr || (residual->sizes() == x.sizes() && like_x(*residual)));
  if (known && fits) return;
  const auto text = [](const at::Tensor& tensor) {
    return fmt::format("[{}] {} on {}", fmt::join(tensor.sizes(), ", "),
                       c10::toString(tensor.scalar_type()), tensor.device().str());
  };
  throw Error(
      {.kind = ErrorKind::kBadInput,
       .what = fmt::format("{}{} normed with weight {}", text(x),
                           residual == nullptr ? "" : " + residual " + text(*residual) + ",",
                           text(weight)),
       .fix = "give equal shapes on one device, a weight of the last dim's size, and one of "
              "float16, bfloat16, float32 and float64"});
}

at::Tensor inference_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_norm_inputs(x, weight, nullptr);
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor values = x.to(wide);
  const at::Tensor factor = values.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
  return (values * factor * weight.to(wide)).to(x.scalar_type());
}

InferenceNormColumn::InferenceNormColumn(at::Tensor norm_weight, at::Tensor weight, double eps,
                                         Communicator& tp, std::string label)
    : norm_weight_(std::move(norm_weight)),
      weight_(std::move(weight)),
      eps_(eps),
      tp_(tp),
      label_(std::move(label)) {}

at::Tensor InferenceNormColumn::forward(const at::Tensor& x) const {
  const at::NoGradGuard no_grad;
  const at::Tensor normed = inference_rms_norm(x, norm_weight_, eps_);
  return forward_normed(tp_.all_gather(normed, 0, label_ + " forward"));
}

at::Tensor InferenceNormColumn::forward_normed(const at::Tensor& gathered) const {
  const at::NoGradGuard no_grad;
  return at::matmul(gathered, weight_.t());
}

InferenceRowScatter::InferenceRowScatter(at::Tensor weight, Communicator& tp, std::string label)
    : weight_(std::move(weight)), tp_(tp), label_(std::move(label)) {}

at::Tensor InferenceRowScatter::forward(const at::Tensor& x) const {
  const at::NoGradGuard no_grad;
  return scattered_rows(x, weight_, tp_, label_);
}

JoinedRows InferenceRowScatter::forward_joined(const at::Tensor& x, const at::Tensor& residual,
                                               const InferenceNormColumn& next) const {
  const at::NoGradGuard no_grad;
  const AddedNorm added = add_rms_norm_over_addend(scattered_rows(x, weight_, tp_, label_),
                                                   residual, next.norm_weight(), next.eps());
  return {.residual = added.sum,
          .gathered = tp_.all_gather(added.normed, 0, next.label() + " forward")};
}

}  // namespace shardproof
