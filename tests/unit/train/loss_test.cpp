// Losses of the sharded side: addends, masks, and values in masked positions.
#include "train/loss.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <limits>

namespace shardproof {
namespace {

at::Tensor numbers(std::vector<double> values) {
  return at::tensor(values, at::kDouble).view({2, 3});
}

TEST_CASE("nll is the masked mean of -logprob over the global count", "[PW-3]") {
  const LossInputs inputs{.logprobs = numbers({0, -1, -2, 0, -3, -4}),
                          .mask = numbers({0, 1, 1, 0, 1, 0})};
  const at::Tensor loss = loss_addend(inputs, {.tokens = 5, .sequences = 2}, {});
  CHECK(loss.item<double>() == Approx((1 + 2 + 3) / 5.0));
}

TEST_CASE("sequence normalisation means over tokens first, then over sequences", "[PW-3]") {
  const LossInputs inputs{.logprobs = numbers({0, -1, -2, 0, -3, -4}),
                          .mask = numbers({0, 1, 1, 0, 1, 0})};
  const at::Tensor loss = loss_addend(inputs, {.tokens = 3, .sequences = 2},
                                      {.normalization = LossNormalization::kSequence});
  CHECK(loss.item<double>() == Approx((1.5 + 3) / 2));
}

TEST_CASE("clipped_pg clips on the side that the advantage says", "[PW-3]") {
  // The ratio e^0.5 exceeds 1.2: it is clipped there for A > 0, and not for A < 0.
  const at::Tensor previous = numbers({0, -1.5, -1.5, 0, 0, 0});
  const LossInputs inputs{.logprobs = numbers({0, -1, -1, 0, 0, 0}),
                          .mask = numbers({0, 1, 1, 0, 0, 0}),
                          .prev_logprobs = previous,
                          .reference_logprobs = numbers({0, -1.25, -1, 0, 0, 0}),
                          .advantages = numbers({0, 2, -1, 0, 0, 0})};
  const at::Tensor loss = loss_addend(inputs, {.tokens = 2, .sequences = 1},
                                      {.kind = LossKind::kClippedPolicyGradient, .kl_beta = 0.1});
  const double kl = std::exp(-0.25) + 0.25 - 1;
  CHECK(loss.item<double>() == Approx((-2 * 1.2 + std::exp(0.5) + 0.1 * kl) / 2));
}

TEST_CASE("NaN and infinity in masked positions reach neither loss nor gradient", "[PW-3]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const at::Tensor logprobs = numbers({0, -1, -2, 0, -3, -4}).requires_grad_();
  const LossInputs inputs{.logprobs = logprobs,
                          .mask = numbers({0, 1, 0, 0, 0, 0}),
                          .prev_logprobs = numbers({nan, -1, -inf, inf, nan, nan}),
                          .reference_logprobs = numbers({nan, -1, inf, -inf, nan, nan}),
                          .advantages = numbers({nan, 1, inf, nan, nan, nan})};
  const at::Tensor loss = loss_addend(inputs, {.tokens = 1, .sequences = 1},
                                      {.kind = LossKind::kClippedPolicyGradient});
  loss.backward();
  CHECK(std::isfinite(loss.item<double>()));
  CHECK(at::isfinite(logprobs.grad()).all().item<bool>());
  CHECK(logprobs.grad().ne(0).sum().item<int64_t>() == 1);
}

TEST_CASE("a batch without counted tokens has loss 0 and gradient 0", "[PW-3]") {
  const at::Tensor logprobs = numbers({0, -1, -2, 0, -3, -4}).requires_grad_();
  const at::Tensor loss =
      loss_addend({.logprobs = logprobs, .mask = numbers({0, 0, 0, 0, 0, 0})}, {}, {});
  loss.backward();
  CHECK(loss.item<double>() == 0);
  CHECK(logprobs.grad().eq(0).all().item<bool>());
}

}  // namespace
}  // namespace shardproof
