#include "sim/uses/proofs/passes.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/seed.h"

namespace shardproof::sim::proofs {

at::Tensor leaf_of(const at::Tensor& tensor, at::ScalarType dtype, const at::Device& device) {
  if (!tensor.is_floating_point()) return tensor.to(device);
  return tensor.detach().to(device, dtype, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
}

at::Tensor gradient_at_output(int64_t seed, const std::string& output,
                              const std::vector<int64_t>& shape) {
  const at::Generator generator =
      at::detail::createCPUGenerator(stream_seed(seed, "gradient at " + output));
  return at::randn(shape, generator, at::TensorOptions().dtype(at::kDouble));
}

void run_backward(const std::vector<at::Tensor>& outputs,
                  const std::vector<at::Tensor>& gradients) {
  torch::autograd::variable_list roots, grads;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
    roots.push_back(outputs[i]);
    grads.push_back(gradients[i].to(outputs[i].device(), outputs[i].scalar_type()));
  }
  if (!roots.empty()) torch::autograd::backward(roots, grads);
}

at::Tensor gradient_of_leaf(const at::Tensor& leaf) {
  if (!leaf.requires_grad()) return {};
  return leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
}

at::Tensor transposed_memory(const at::Tensor& tensor) {
  return tensor.transpose(0, -1).contiguous().transpose(0, -1);
}

at::Tensor log_softmax_of_rows(const at::Tensor& logits) {
  if (logits.scalar_type() == at::kDouble) return at::log_softmax(logits, -1);
  return logits - logits.logsumexp(-1, /*keepdim=*/true);
}

}  // namespace shardproof::sim::proofs
