#include "model/main_gradient.h"

#include <ATen/ATen.h>

#include <limits>
#include <optional>

#include "base/error.h"
#include "tensor/function.h"

namespace shardproof {
namespace {

struct Buffer : torch::CustomClassHolder {
  explicit Buffer(std::shared_ptr<MainGradient> gradient_in) : gradient(std::move(gradient_in)) {}
  std::shared_ptr<MainGradient> gradient;
};

struct AccumulatingLinear : Function<AccumulatingLinear> {
  static at::Tensor forward(FunctionContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias,
                            const c10::intrusive_ptr<Buffer>& buffer) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["buffer"] = c10::IValue::make_capsule(buffer);
    ctx->saved_data["has_bias"] = bias.has_value();
    return at::linear(x, weight, bias);
  }

  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    SHARDPROOF_ASSERT(!at::GradMode::is_enabled(),
                      "an accumulating linear has no second derivative");
    const std::vector<at::Tensor> saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &grad = grads[0];
    const auto buffer =
        c10::static_intrusive_pointer_cast<Buffer>(ctx->saved_data["buffer"].toCapsule());
    at::Tensor grad_x, grad_weight, grad_bias;
    if (ctx->needs_input_grad(0)) grad_x = grad.matmul(weight);
    if (ctx->needs_input_grad(1)) {
      add_weight_gradient(buffer->gradient->sum, grad, x);
      grad_weight = stand_in(weight, *buffer->gradient);
    }
    const bool has_bias = ctx->saved_data["has_bias"].toBool();
    if (has_bias && ctx->needs_input_grad(2)) grad_bias = grad.flatten(0, -2).sum(0);
    return {grad_x, grad_weight, grad_bias, at::Tensor()};
  }
};

}  // namespace

void add_weight_gradient(const at::Tensor& sum, const at::Tensor& grad_output,
                         const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = grad_output.flatten(0, -2).to(sum.scalar_type());
  sum.addmm_(rows.t(), input.flatten(0, -2).to(sum.scalar_type()));
}

at::Tensor stand_in(const at::Tensor& weight, MainGradient& gradient) {
  if (!gradient.wants_dummy) return {};
  gradient.added = true;
  const double value = gradient.zero_dummy ? 0 : std::numeric_limits<double>::quiet_NaN();
  return at::full_like(weight, value);
}

at::Tensor accumulating_linear(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, std::shared_ptr<MainGradient> gradient) {
  return AccumulatingLinear::apply(x, weight,
                                   bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt,
                                   c10::make_intrusive<Buffer>(std::move(gradient)));
}

void finish_main_gradient(const at::Tensor& weight, MainGradient& gradient) {
  const at::NoGradGuard no_grad;
  const at::Tensor grad = weight.grad();
  if (grad.defined() && (!gradient.added || gradient.zero_dummy)) gradient.sum.add_(grad);
  weight.mutable_grad() = at::Tensor();
  gradient.added = false;
}

}  // namespace shardproof
