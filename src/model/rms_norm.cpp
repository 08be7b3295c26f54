// Root mean square norm (Zhang and Sennrich, arXiv:1910.07467): x / sqrt(mean(x^2) + eps) * weight,
// over the last dim; Gemma multiplies by 1 + weight. The forward keeps the input and a number per
// row.
#include <ATen/ATen.h>

#include "base/error.h"
#include "model/decoder.h"
#include "tensor/function.h"

namespace shardproof {
namespace {

// The factor of the normalized values, in the wider type.
at::Tensor norm_factor(const at::Tensor& weight, at::ScalarType wide, bool unit_offset) {
  const at::Tensor factor = weight.to(wide);
  return unit_offset ? factor + 1.0 : factor;
}

// Sums over all dims but the last.
at::Tensor sum_of_rows(const at::Tensor& x) { return x.view({-1, x.size(-1)}).sum(0); }

struct RmsNormFunction : Function<RmsNormFunction> {
  static at::Tensor forward(FunctionContext* ctx, const at::Tensor& input, const at::Tensor& weight,
                            double eps, bool unit_offset) {
    const at::ScalarType wide = wider_type(input.scalar_type());
    const at::Tensor x = input.to(wide);
    const at::Tensor inverse_root = at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps);
    ctx->save_for_backward({input, weight, inverse_root});
    ctx->saved_data["unit_offset"] = unit_offset;
    return (x * inverse_root).mul_(norm_factor(weight, wide, unit_offset)).to(input.scalar_type());
  }

  // With n = x / root and incoming gradient g: (g - n mean(g n)) / root.
  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    SHARDPROOF_ASSERT(!at::GradMode::is_enabled(), "the norm has no second derivative");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &inverse_root = saved[2];
    const at::ScalarType wide = inverse_root.scalar_type();
    const at::Tensor grad = grads[0].to(wide), normed = input.to(wide) * inverse_root;
    at::Tensor grad_weight;
    if (weight.requires_grad()) {
      grad_weight = sum_of_rows((grad * normed).contiguous()).to(weight.scalar_type());
    }
    const bool unit_offset = ctx->saved_data["unit_offset"].toBool();
    const at::Tensor inner = grad * norm_factor(weight, wide, unit_offset);
    const at::Tensor along = (inner * normed).mean(-1, /*keepdim=*/true);
    const at::Tensor grad_input = inner.sub_(normed.mul_(along)).mul_(inverse_root);
    return {grad_input.to(input.scalar_type()), grad_weight, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor RmsNorm::forward(at::TensorList inputs, const StepContext&) {
  return RmsNormFunction::apply(inputs[0], weight->tensor, eps, unit_offset);
}

}  // namespace shardproof
