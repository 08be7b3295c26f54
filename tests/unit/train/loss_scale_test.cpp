// The loss scale follows torch.amp.GradScaler on all ranks; microbatches are summed in the wider
// type.
#include "train/loss_scale.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "model/precision.h"
#include "parallel/data/microbatch_gradients.h"
#include "tests/unit/train/small_run.h"

namespace shardproof::tests::loss_scale_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Each rank's scale before each step, and whether the step was skipped.
struct ScaleLog {
  std::vector<double> scales;
  std::vector<bool> skipped;
};

// Runs steps of three ranks; `value_at(rank, step)` is the gradient times the scale.
std::vector<ScaleLog> scale_logs(const LossScaleOptions& options, int64_t steps,
                                 const std::function<double(int64_t, int64_t)>& value_at) {
  std::vector<ScaleLog> logs(3);
  run_emulated_ranks(Mesh::training({.dp = 3}), [&](MeshComm& comm, int64_t rank) {
    LossScale scale(options);
    ScaleLog& log = logs[static_cast<size_t>(rank)];
    for (int64_t step = 0; step < steps; ++step) {
      log.scales.push_back(scale.scale());
      const std::vector<at::Tensor> grads = {at::ones({2}), at::full({3}, value_at(rank, step))};
      log.skipped.push_back(scale.unscale(grads, comm.world(), at::kCPU));
      if (scale.scale() != log.scales.back()) throw std::runtime_error("moved before its time");
      scale.update(log.skipped.back());
    }
  });
  return logs;
}

TEST_CASE("what overflows on one rank is skipped by all, and the scale backs off and grows",
          "[train][PW-1]") {
  const LossScaleOptions options{
      .enabled = true, .init_scale = 64, .growth_factor = 4, .growth_interval = 2};
  for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
    const auto logs = scale_logs(options, 7, [&](int64_t rank, int64_t step) {
      return (step == 1 && rank == 2) || (step == 2 && rank == 0) ? bad : 1.0;
    });
    for (const ScaleLog& log : logs) {
      CHECK(log.skipped == std::vector<bool>{false, true, true, false, false, false, false});
      CHECK(log.scales == std::vector<double>{64, 64, 32, 16, 16, 64, 64});
    }
  }
}

TEST_CASE("the scale grows on from more good steps than the interval", "[train][PW-1]") {
  LossScale scale({.enabled = true, .growth_interval = 2});
  scale.set_state({.scale = 8, .good_steps = 5});
  scale.update(/*overflow=*/false);
  CHECK(scale.scale() == 16);
  CHECK(scale.state().good_steps == 0);
}

TEST_CASE("the scale does not grow beyond float32", "[train][PW-1]") {
  LossScale scale(
      {.enabled = true, .init_scale = 1e30, .growth_factor = 100, .growth_interval = 1});
  for (int step = 0; step < 200; ++step) scale.update(/*overflow=*/false);
  CHECK(scale.scale() == 1e38);
  CHECK(std::isfinite(static_cast<float>(scale.scale())));
}

TEST_CASE("without loss scaling nothing is scaled, skipped or sent", "[train][PW-1]") {
  const auto logs = scale_logs({}, 2, [](int64_t, int64_t) { return kInfinity; });
  for (const ScaleLog& log : logs) {
    CHECK(log.skipped == std::vector<bool>{false, false});
    CHECK(log.scales == std::vector<double>{1, 1});
  }
}

TEST_CASE("gradients are divided by the scale in place, and a mean of them is undone",
          "[train][PW-1]") {
  run_emulated_ranks(Mesh::training({}), [&](MeshComm& comm, int64_t) {
    LossScale scale({.enabled = true, .init_scale = 8});
    const at::Tensor grad = at::full({2}, 4.0);
    scale.unscale({grad}, comm.world(), at::kCPU);
    if (!grad.eq(0.5).all().item<bool>()) throw std::runtime_error("not divided by 8");
    scale.unscale({grad}, comm.world(), at::kCPU, /*mean_over=*/6);
    if (!grad.eq(0.375).all().item<bool>()) throw std::runtime_error("not multiplied by 6 / 8");
  });
}

TEST_CASE("microbatches of a low-precision leaf add up in float32", "[train][MP-5]") {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const auto parameter = std::make_shared<Parameter>();
    parameter->tensor = at::zeros({1}, dtype).requires_grad_();
    MicrobatchGradients gradients;
    for (int i = 0; i < 4; ++i) {  // 2048 + 1 is 2048 in float16, 2048 + 4 is so in bfloat16
      parameter->tensor.mutable_grad() = at::full({1}, i == 0 ? 2048.0 : 1.0, dtype);
      gradients.keep({parameter});
      CHECK_FALSE(parameter->tensor.grad().defined());
    }
    const at::Tensor sum = gradients.take({parameter})[0];
    CHECK(sum.scalar_type() == at::kFloat);
    CHECK(sum.item<float>() == 2051);
    CHECK(gradients.take({parameter})[0].item<float>() == 0);
  }
}

TEST_CASE("replicated bfloat16 sums its microbatches as fully sharded does", "[train][MP-5]") {
  Trial trial{.mesh = Mesh::training({.dp = 2}), .dtype = at::kBFloat16, .steps = 1};
  trial.options.optimizer = {.kind = OptimizerKind::kSgd, .lr = 1.0, .weight_decay = 0};
  trial.options.max_norm = 0;
  trial.options.micro_batch_size = 1;
  Trial sharded = trial;
  sharded.parallel.data = fsdp();
  CHECK(difference(train(sharded), train(trial), 1e-6) == "");
}

}  // namespace
}  // namespace shardproof::tests::loss_scale_test
