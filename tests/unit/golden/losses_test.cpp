// Losses by their definitions; logprobs, gradients and what does not count are in golden/hf and
// scenarios/train.
#include "golden/losses.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace shardproof::golden {
namespace {

// Three samples of up to four positions; the second is dropped, and the third has weight 1/2.
Batch batch() {
  Batch b;
  b.input_ids = at::tensor({0, 1, 2, 3, 4, 3, 2, 1, 1, 4, 0, 0}, at::kLong).view({3, 4});
  b.input_lengths = at::tensor({4, 4, 2}, at::kLong);
  b.token_mask =
      at::tensor({1., 1., 0., 1., 1., 1., 1., 1., 1., 1., 1., 1.}, at::kDouble).view({3, 4});
  b.sample_mask = at::tensor({1., 0., 0.5}, at::kDouble);
  return b;
}

at::Tensor some_logprobs() {
  return at::tensor({0., -1.0, -7.0, -2.0, 0., -9., -9., -9., 0., -3.0, 0., 0.}, at::kDouble)
      .view({3, 4})
      .set_requires_grad(true);
}

Batch with_policy(Batch b) {
  b.prev_logprobs = at::full({3, 4}, -1.5, at::kDouble);
  b.reference_logprobs = at::full({3, 4}, -1.2, at::kDouble);
  b.advantages =
      at::tensor({1., -2., 1., 3., 1., 1., 1., 1., 1., 4., 1., 1.}, at::kDouble).view({3, 4});
  return b;
}

// The clipped loss of one token, from its definition.
double clipped(double now, double advantage, double eps, double beta) {
  const double ratio = std::exp(now + 1.5), clamped = std::min(std::max(ratio, 1 - eps), 1 + eps);
  const double d = -1.2 - now;
  return std::max(-advantage * ratio, -advantage * clamped) + beta * (std::exp(d) - d - 1);
}

}  // namespace

TEST_CASE("Logprobs of low-precision logits are computed in float32", "[golden]") {
  const at::Tensor logits = at::ones({3, 4, 5}, at::kBFloat16);
  CHECK(dense_logprobs(logits, batch()).scalar_type() == at::kFloat);
}

TEST_CASE("A moved row has the logprobs and probabilities of a larger sum", "[golden]") {
  const at::Tensor logits = at::arange(12, at::kDouble).view({1, 2, 6}).set_requires_grad(true);
  const at::Tensor moves = at::tensor({0.5, -0.25}, at::kDouble).view({1, 2, 1});
  const at::Tensor moved = dense_log_softmax(logits, moves);
  CHECK(at::allclose(moved, at::log_softmax(logits, -1) - moves, 0, 1e-14));
  moved[0][1][4].backward();
  at::Tensor expected = -moved.detach()[0][1].exp();
  expected[4] += 1;
  CHECK(at::allclose(logits.grad()[0][1], expected, 0, 1e-14));
  CHECK(logits.grad()[0][0].abs().max().item<double>() == 0);
}

TEST_CASE("A batch of one position has no logprob and still a loss", "[golden]") {
  Batch b = batch();
  b.input_ids = b.input_ids.narrow(1, 0, 1);
  b.input_lengths = at::ones({3}, at::kLong);
  b.token_mask = b.token_mask.narrow(1, 0, 1);
  const at::Tensor logits = at::ones({3, 1, 5}, at::kDouble).set_requires_grad(true);
  const at::Tensor loss = dense_loss(dense_logprobs(logits, b), b, {});
  loss.backward();
  CHECK(loss.item<double>() == 0);
  CHECK(logits.grad().abs().max().item<double>() == 0);
}

TEST_CASE("nll is the weighted mean over counted tokens, or over sequences of their own means",
          "[golden]") {
  const auto loss = [](LossNormalization normalization) {
    return dense_loss(some_logprobs(), batch(), {.normalization = normalization}).item<double>();
  };
  CHECK(loss(LossNormalization::kToken) == Approx((1.0 + 2.0 + 0.5 * 3.0) / 2.5).epsilon(1e-15));
  CHECK(loss(LossNormalization::kSequence) == Approx(((1.0 + 2.0) / 2 + 3.0) / 2).epsilon(1e-15));
}

TEST_CASE("clipped_pg is its definition, token by token", "[golden]") {
  const auto [eps, beta] = GENERATE(table<double, double>({{0.2, 0.01}, {0.5, 0.3}, {0.2, 0.0}}));
  const at::Tensor loss =
      dense_loss(some_logprobs(), with_policy(batch()),
                 {.kind = LossKind::kClippedPolicyGradient, .clip_eps = eps, .kl_beta = beta});
  const double wanted = clipped(-1.0, -2, eps, beta) + clipped(-2.0, 3, eps, beta) +
                        0.5 * clipped(-3.0, 4, eps, beta);
  CHECK(loss.item<double>() == Approx(wanted / 2.5).epsilon(1e-14));
}

// A chosen and a rejected sample of three positions; the last two of each count.
Batch pair_batch() {
  Batch b;
  b.input_ids = at::zeros({2, 3}, at::kLong);
  b.input_lengths = at::tensor({3, 3}, at::kLong);
  b.token_mask = at::ones({2, 3}, at::kDouble);
  b.sample_mask = at::ones({2}, at::kDouble);
  b.reference_logprobs = at::tensor({0., -1., -2., 0., -1.5, -0.5}, at::kDouble).view({2, 3});
  return b;
}

double metric(const std::vector<Metric>& metrics, const std::string& name) {
  for (const Metric& one : metrics) {
    if (one.name == name) return one.value;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

TEST_CASE("preference is log(1 + exp(-margin)) of one pair, and its slope beta sigmoid(-margin)",
          "[golden]") {
  const Batch b = pair_batch();
  // The chosen sample moved by 0.25 + 0.5, the rejected one by -0.25 + 0: the margin is beta.
  const at::Tensor now = at::tensor({0., -0.75, -1.5, 0., -1.75, -0.5}, at::kDouble)
                             .view({2, 3})
                             .set_requires_grad(true);
  const LossOptions loss{.kind = LossKind::kPreference, .kl_beta = 0.5};
  const at::Tensor value = dense_loss(now, b, loss);
  value.backward();
  CHECK(value.item<double>() == Approx(std::log(1 + std::exp(-0.5))).epsilon(1e-14));
  const double slope = 0.5 / (1 + std::exp(0.5));
  CHECK(now.grad()[0][1].item<double>() == Approx(-slope).epsilon(1e-14));
  CHECK(now.grad()[1][2].item<double>() == Approx(slope).epsilon(1e-14));
  CHECK(metric(dense_metrics(now, b, loss), "margin") == Approx(0.5).epsilon(1e-14));
  CHECK(metric(dense_metrics(now, b, loss), "accuracy") == 1);
}

TEST_CASE("preference far from 0 keeps to its limits: -margin below, exp(-margin) above",
          "[golden]") {
  const Batch b = pair_batch();
  const LossOptions loss{.kind = LossKind::kPreference, .kl_beta = 1};
  const auto moved_by = [&](double margin) {
    at::Tensor now = b.reference_logprobs.clone();
    now[0][1] += margin;
    return now.set_requires_grad(true);
  };
  for (const double margin : {-100.0, -800.0, -1e6}) {
    for (const auto type : {at::kDouble, at::kFloat}) {
      const at::Tensor now = moved_by(margin).detach().to(type).set_requires_grad(true);
      const at::Tensor value = dense_loss(now, b, loss);
      value.backward();
      CHECK(value.item<double>() == Approx(-margin).epsilon(1e-6));
      CHECK(now.grad()[0][1].item<double>() == Approx(-1));
    }
  }
  const at::Tensor value = dense_loss(moved_by(30), b, loss);  // 1 + exp(-30) rounds at digit 13
  CHECK(value.item<double>() == Approx(std::exp(-30.0)).epsilon(1e-12).margin(0));
}

TEST_CASE("A policy equal to its reference wins no pair, however its sums round", "[golden]") {
  const Batch b = pair_batch();
  const LossOptions loss{.kind = LossKind::kPreference, .kl_beta = 0.5};
  for (const double noise : {0.0, 1e-15, -1e-15}) {
    at::Tensor now = b.reference_logprobs.clone();
    now[0][1] += noise;
    CHECK(metric(dense_metrics(now, b, loss), "accuracy") == 0);
  }
  at::Tensor now = b.reference_logprobs.clone();
  now[0][1] += 1e-6;
  CHECK(metric(dense_metrics(now, b, loss), "accuracy") == 1);
}

TEST_CASE("Missing policy tensors are bad input", "[golden]") {
  CHECK_THROWS_WITH(
      dense_loss(some_logprobs(), batch(), {.kind = LossKind::kClippedPolicyGradient}),
      Catch::Contains("advantages"));
  Batch no_reference = with_policy(batch());
  no_reference.reference_logprobs = at::Tensor();
  CHECK_THROWS_WITH(
      dense_loss(some_logprobs(), no_reference, {.kind = LossKind::kClippedPolicyGradient}),
      Catch::Contains("reference_logprobs"));
  CHECK_NOTHROW(dense_loss(some_logprobs(), no_reference,
                           {.kind = LossKind::kClippedPolicyGradient, .kl_beta = 0}));
}

}  // namespace shardproof::golden
