#include "golden/dense_experts.h"

#include <ATen/ATen.h>

namespace shardproof::golden {

at::Tensor dense_experts(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& gate_up,
                         const at::Tensor& down, Activation activation) {
  const int64_t width = down.size(2);
  at::Tensor sum = at::zeros_like(x);
  for (int64_t i = 0; i < down.size(0); ++i) {
    const at::Tensor gate = x.matmul(gate_up[i].narrow(0, 0, width).t());
    const at::Tensor up = x.matmul(gate_up[i].narrow(0, width, width).t());
    const at::Tensor active =
        activation == Activation::kGeluTanh ? at::gelu(gate, "tanh") : at::silu(gate);
    const at::Tensor weight = weights.narrow(1, i, 1).to(x.scalar_type());
    sum = sum + weight * (active * up).matmul(down[i].t());
  }
  return sum;
}

at::Tensor dense_clamped_experts(const at::Tensor& x, const at::Tensor& weights,
                                 const ExpertTensors& experts) {
  const GateClamp& clamp = experts.form.clamp;
  at::Tensor sum = at::zeros_like(x);
  for (int64_t i = 0; i < experts.down.size(0); ++i) {
    const at::Tensor both = x.matmul(experts.gate_up[i]) + experts.gate_up_bias[i];
    at::Tensor gate = both.slice(1, 0, std::nullopt, 2), up = both.slice(1, 1, std::nullopt, 2);
    gate = at::where(gate.gt(clamp.limit), at::full_like(gate, clamp.limit), gate);
    up = at::where(up.abs().gt(clamp.limit), clamp.limit * up.sign(), up);
    const at::Tensor active = (1 + up) * gate / (1 + (-clamp.alpha * gate).exp());
    const at::Tensor weight = weights.narrow(1, i, 1).to(x.scalar_type());
    sum = sum + weight * (active.matmul(experts.down[i]) + experts.down_bias[i]);
  }
  return sum;
}

}  // namespace shardproof::golden
