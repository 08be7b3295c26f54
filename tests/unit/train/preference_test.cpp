// Which of two samples is better where a policy equals its reference; scenarios/train/preference
// has the loss and the other metrics.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "train/loss.h"

namespace shardproof {
namespace {

// The share of two pairs that the policy wins against `reference`.
double accuracy(const at::Tensor& now, const at::Tensor& reference) {
  const at::Tensor mask = at::tensor({0., 1., 1.}, at::kDouble).expand({4, 3});
  const LossInputs inputs{.logprobs = now, .mask = mask, .reference_logprobs = reference};
  for (const LossMetric& metric :
       loss_metrics(inputs, counts_of(mask), {.kind = LossKind::kPreference, .kl_beta = 0.3})) {
    if (std::string(metric.name) == "accuracy") return metric.addend.item<double>();
  }
  return -1;
}

TEST_CASE("a policy equal to its reference wins nothing, however its sums round", "[train][PW-3]") {
  const at::Tensor now =
      at::tensor({0., -1., -2., 0., -1.5, -.5, 0., -3., -1., 0., -9., -9.}, at::kDouble)
          .view({4, 3});
  for (const double noise : {0.0, 1e-16, -1e-16, 4e-15}) {
    const at::Tensor reference = now.clone();
    for (const int64_t chosen : {0, 2}) reference[chosen][1] *= 1 + noise;
    CHECK(accuracy(now, reference) == 0);
  }
  at::Tensor reference = now.clone();
  reference[0][1] -= 1e-6;
  CHECK(accuracy(now, reference) == 0.5);
}

}  // namespace
}  // namespace shardproof
