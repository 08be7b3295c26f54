// The elementwise layers: the gated activations of the MLP and the residual sum. A gate keeps its
// two inputs; its backward recomputes the factors of the product.
#include <ATen/ATen.h>

#include "base/error.h"
#include "model/decoder.h"
#include "tensor/function.h"

namespace shardproof {
namespace {

struct Silu {
  static at::Tensor of(const at::Tensor& x) { return at::silu(x); }
  static at::Tensor backward(const at::Tensor& grad, const at::Tensor& x) {
    return at::silu_backward(grad, x);
  }
};

struct GeluTanh {
  static at::Tensor of(const at::Tensor& x) { return at::gelu(x, "tanh"); }
  static at::Tensor backward(const at::Tensor& grad, const at::Tensor& x) {
    return at::gelu_backward(grad, x, "tanh");
  }
};

// gate, up -> Curve(gate) * up
template <class Curve>
struct GateFunction : Function<GateFunction<Curve>> {
  static at::Tensor forward(FunctionContext* ctx, const at::Tensor& gate, const at::Tensor& up) {
    ctx->save_for_backward({gate, up});
    return Curve::of(gate).mul_(up);
  }

  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    SHARDPROOF_ASSERT(!at::GradMode::is_enabled(), "a gate has no second derivative");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1];
    return {Curve::backward(grads[0] * up, gate), Curve::of(gate).mul_(grads[0])};
  }
};

// Above its limit a clamped value has no gradient, as in PyTorch. In the wider type, since a narrow
// one may not hold the gradients of its factors.
at::Tensor clamped_swiglu(const at::Tensor& gate, const at::Tensor& up, const GateClamp& clamp) {
  const at::Tensor low = gate.clamp_max(clamp.limit);
  return (up.clamp(-clamp.limit, clamp.limit) + 1) * (low * at::sigmoid(low * clamp.alpha));
}

}  // namespace

at::Tensor GatedActivation::forward(at::TensorList inputs, const StepContext&) {
  if (activation_ == Activation::kClampedSwiglu) {
    const at::ScalarType wide = wider_type(inputs[0].scalar_type());
    return clamped_swiglu(inputs[0].to(wide), inputs[1].to(wide), clamp_)
        .to(inputs[0].scalar_type());
  }
  return activation_ == Activation::kGeluTanh ? GateFunction<GeluTanh>::apply(inputs[0], inputs[1])
                                              : GateFunction<Silu>::apply(inputs[0], inputs[1]);
}

at::Tensor RotaryKey::forward(at::TensorList inputs, const StepContext&) {
  return at::alias(inputs[0]);
}

at::Tensor Residual::forward(at::TensorList inputs, const StepContext&) {
  return inputs[0] + inputs[1];
}

}  // namespace shardproof
