// optimizer_step against torch::optim, which shares no code with it.
#include "optim/optimizer.h"

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <catch2/catch.hpp>

namespace shardproof {
namespace {

at::Tensor drawn(at::IntArrayRef shape, int64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, generator, at::TensorOptions().dtype(at::kDouble));
}

// The largest difference after three steps of ours and of `witness` on the same gradients.
template <class Witness>
double difference_after_three_steps(const OptimizerOptions& options, Witness make_witness) {
  const at::Tensor start = drawn({5, 3}, 1);
  const at::Tensor ours = start.clone();
  at::Tensor theirs = start.clone().requires_grad_();
  auto witness = make_witness(std::vector<at::Tensor>{theirs});
  OptimizerState state;
  for (int64_t step = 0; step < 3; ++step) {
    const at::Tensor grad = drawn({5, 3}, 10 + step);
    optimizer_step(ours, grad, state, options);
    theirs.mutable_grad() = grad.clone();
    witness.step();
  }
  return (ours - theirs.detach()).abs().max().item<double>();
}

TEST_CASE("AdamW takes the steps of torch::optim::AdamW", "[PW-9]") {
  const OptimizerOptions options{.kind = OptimizerKind::kAdamW,
                                 .lr = 0.05,
                                 .beta1 = 0.8,
                                 .beta2 = 0.95,
                                 .eps = 1e-6,
                                 .weight_decay = 0.1};
  CHECK(difference_after_three_steps(options, [](std::vector<at::Tensor> parameters) {
          return torch::optim::AdamW(
              parameters,
              torch::optim::AdamWOptions(0.05).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.1));
        }) <= 1e-14);
}

TEST_CASE("SGD takes the steps of torch::optim::SGD", "[PW-9]") {
  const double momentum = GENERATE(0.0, 0.9), dampening = GENERATE(0.0, 0.3);
  const bool nesterov = GENERATE(false, true);
  if (nesterov && (momentum == 0 || dampening != 0)) return;  // PyTorch has no such step
  const OptimizerOptions options{.kind = OptimizerKind::kSgd,
                                 .lr = 0.05,
                                 .weight_decay = 0.1,
                                 .momentum = momentum,
                                 .dampening = dampening,
                                 .nesterov = nesterov};
  CHECK(difference_after_three_steps(options, [&](std::vector<at::Tensor> parameters) {
          return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.05)
                                                   .momentum(momentum)
                                                   .dampening(dampening)
                                                   .nesterov(nesterov)
                                                   .weight_decay(0.1));
        }) <= 1e-14);
}

TEST_CASE("a shard's optimizer step is the shard of the step", "[PW-9]") {
  const OptimizerOptions options{.lr = 0.05};
  const at::Tensor whole = drawn({6, 4}, 1);
  const at::Tensor grad = drawn({6, 4}, 2);
  const at::Tensor part = whole.narrow(0, 2, 3).clone();
  OptimizerState whole_state;
  OptimizerState part_state;
  optimizer_step(whole, grad, whole_state, options);
  optimizer_step(part, grad.narrow(0, 2, 3), part_state, options);
  CHECK(at::equal(part, whole.narrow(0, 2, 3)));
}

}  // namespace
}  // namespace shardproof
