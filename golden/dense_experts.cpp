#include "golden/dense_experts.h"

#include <ATen/ATen.h>

namespace shardproof::golden {
namespace {

// The gradient of a weight is a sum over E, which may not fit float16.
at::ScalarType dtype_of_sum(const at::Tensor& x, const at::Tensor& weights) {
  return x.scalar_type() == at::kHalf ? weights.scalar_type() : x.scalar_type();
}

}  // namespace

at::Tensor dense_experts(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& gate_up,
                         const at::Tensor& down, Activation activation,
                         std::vector<at::Tensor>* each) {
  const int64_t width = down.size(2);
  at::Tensor sum = at::zeros(x.sizes(), x.options().dtype(dtype_of_sum(x, weights)));
  for (int64_t i = 0; i < down.size(0); ++i) {
    const at::Tensor gate = x.matmul(gate_up[i].narrow(0, 0, width).t());
    const at::Tensor up = x.matmul(gate_up[i].narrow(0, width, width).t());
    const at::Tensor active =
        activation == Activation::kGeluTanh ? at::gelu(gate, "tanh") : at::silu(gate);
    const at::Tensor output = (active * up).matmul(down[i].t());
    if (each != nullptr) each->push_back(output.detach());
    sum = sum + weights.narrow(1, i, 1).to(sum.scalar_type()) * output.to(sum.scalar_type());
  }
  return sum.to(x.scalar_type());
}

at::Tensor dense_clamped_experts(const at::Tensor& x, const at::Tensor& weights,
                                 const ExpertTensors& experts, std::vector<at::Tensor>* each) {
  const GateClamp& clamp = experts.form.clamp;
  const at::ScalarType dtype = x.scalar_type(), wide = weights.scalar_type();
  at::Tensor sum = at::zeros(x.sizes(), x.options().dtype(dtype_of_sum(x, weights)));
  for (int64_t i = 0; i < experts.down.size(0); ++i) {
    const at::Tensor both = (x.matmul(experts.gate_up[i]) + experts.gate_up_bias[i]).to(wide);
    at::Tensor gate = both.slice(1, 0, std::nullopt, 2), up = both.slice(1, 1, std::nullopt, 2);
    gate = at::where(gate.gt(clamp.limit), at::full_like(gate, clamp.limit), gate);
    up = at::where(up.abs().gt(clamp.limit), clamp.limit * up.sign(), up);
    const at::Tensor active = (1 + up) * gate / (1 + (-clamp.alpha * gate).exp());
    const at::Tensor output = active.to(dtype).matmul(experts.down[i]) + experts.down_bias[i];
    if (each != nullptr) each->push_back(output.detach());
    sum = sum + weights.narrow(1, i, 1).to(sum.scalar_type()) * output.to(sum.scalar_type());
  }
  return sum.to(dtype);
}

}  // namespace shardproof::golden
