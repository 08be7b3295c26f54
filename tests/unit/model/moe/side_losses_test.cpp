// Legend: T tokens, N experts, K chosen per token.
#include "model/moe/side_losses.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "golden/dense_side_losses.h"
#include "model/moe/selection.h"
#include "model/moe/selection_bias.h"
#include "tensor/safetensors.h"
#include "tests/unit/model/moe/rules.h"

namespace shardproof::tests {
namespace {

// 30 tokens: sequences of 13, 1, 0 and 8 tokens with padding behind each.
std::vector<int64_t> some_groups() {
  std::vector<int64_t> groups(30, -1);
  for (int64_t t = 0; t < 13; ++t) groups[t] = 0;
  groups[15] = 1;
  for (int64_t t = 20; t < 28; ++t) groups[t] = 3;
  return groups;
}

void check_same(const at::Tensor& ours, const at::Tensor& logits, const at::Tensor& golden,
                const at::Tensor& dense) {
  CHECK(at::allclose(ours, golden, 0, kAgreement));
  ours.backward();
  golden.backward();
  CHECK(at::allclose(logits.grad(), dense.grad(), 0, kAgreement));
  CHECK(dense.grad().abs().max().item<double>() > 1e-4);
}

// The mean of losses [G] over the groups that have a token; 0 if none has.
at::Tensor mean_over_groups(const at::Tensor& losses, const at::Tensor& tokens) {
  return losses.sum() / tokens.gt(0).sum().clamp_min(1);
}

}  // namespace

TEST_CASE("The side losses of groups and their gradients are the golden's",
          "[moe][MR-9][MR-10][MR-12]") {
  for (const RouterRule& rule : all_rules()) {
    for (const bool one_group : {false, true}) {
      std::vector<int64_t> groups = some_groups();
      for (int64_t& group : groups) {
        if (one_group) group = std::min<int64_t>(group, 0);
      }
      const at::Tensor group = numbers(groups);
      const auto leaf = [&] { return drawn({30, rule.num_experts}, 4).requires_grad_(); };
      {
        const at::Tensor ours = leaf(), theirs = leaf();
        const BalancingSums sums = balancing_sums(ours, group, 4, rule);
        CHECK_FALSE(sums.counts.requires_grad());
        // With K = N every expert has the same count, and the loss is constant.
        if (rule.num_chosen == rule.num_experts) continue;
        check_same(mean_over_groups(balancing_losses(sums, rule), sums.tokens), ours,
                   golden::dense_balancing_loss(theirs, groups, rule), theirs);
      }
      const at::Tensor ours = leaf(), theirs = leaf();
      const at::Tensor tokens = balancing_sums(ours, group, 4, rule).tokens;
      check_same(mean_over_groups(z_losses(ours, group, 4), tokens), ours,
                 golden::dense_z_loss(theirs, groups), theirs);
    }
  }
}

TEST_CASE("A balanced router has a balancing loss of 1, and no bias moves it", "[moe][MR-9]") {
  const RouterRule rule{.num_experts = 4, .num_chosen = 1, .scores = RouterScores::kSoftmaxOfAll};
  const at::Tensor logits = at::eye(4, at::kDouble) * 3;
  const BalancingSums sums = balancing_sums(logits, numbers({0, 0, 0, 0}), 1, rule);
  CHECK(balancing_losses(sums, rule).item<double>() == Approx(1).epsilon(1e-14));
  const BalancingSums busy = balancing_sums(logits.narrow(0, 0, 1), numbers({0}), 1, rule);
  CHECK(balancing_losses(busy, rule).item<double>() > 3);
}

TEST_CASE("A group without tokens is not a group of the mean", "[moe][MR-10]") {
  const RouterRule rule{.num_experts = 4, .num_chosen = 2};
  const at::Tensor logits = drawn({3, 4}, 6).requires_grad_();
  const BalancingSums sums = balancing_sums(logits, numbers({-1, -1, -1}), 2, rule);
  const at::Tensor loss = mean_over_groups(balancing_losses(sums, rule), sums.tokens);
  CHECK(loss.item<double>() == 0);
  loss.backward();
  CHECK(logits.grad().abs().max().item<double>() == 0);
}

TEST_CASE("Ranks that add their sums of a group give the loss and gradient of the whole group",
          "[moe][MR-10]") {
  const RouterRule rule{.num_experts = 6, .num_chosen = 2, .scores = RouterScores::kSigmoid};
  const at::Tensor whole = drawn({12, 6}, 8).requires_grad_(),
                   cut = drawn({12, 6}, 8).requires_grad_();
  const at::Tensor group = at::zeros({12}, at::kLong);
  const BalancingSums sums = balancing_sums(whole, group, 1, rule);
  balancing_losses(sums, rule).sum().backward();
  const BalancingSums a = balancing_sums(cut.narrow(0, 0, 5), group.narrow(0, 0, 5), 1, rule);
  const BalancingSums b = balancing_sums(cut.narrow(0, 5, 7), group.narrow(0, 5, 7), 1, rule);
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (const at::Tensor& scores : {a.scores, b.scores}) {  // each rank's share of the loss
    sum =
        sum +
        balancing_losses(
            {.counts = a.counts + b.counts, .scores = scores, .tokens = a.tokens + b.tokens}, rule)
            .sum();
  }
  CHECK(sum.item<double>() == Approx(balancing_losses(sums, rule).item<double>()).epsilon(1e-14));
  sum.backward();
  CHECK(at::allclose(cut.grad(), whole.grad(), 0, kAgreement));
  // Scope global: f of both, P of the own tokens.
  const at::Tensor of_a = balancing_losses_of_counts(a, (a.counts + b.counts)[0], 12, rule);
  const at::Tensor by_hand =
      ((a.counts + b.counts)[0].to(at::kDouble) / 24 * (a.scores[0] / 5)).sum() * 6;
  CHECK(of_a.item<double>() == Approx(by_hand.item<double>()).epsilon(1e-14));
  CHECK(of_a.item<double>() != Approx(balancing_losses(a, rule).item<double>()).epsilon(1e-6));
}

TEST_CASE("The pooled loss of several layers is that of transformers", "[moe][MR-9]") {
  const SafetensorsFile file = SafetensorsFile::open("golden/hf/routers.safetensors");
  const RouterRule rule{.num_experts = 6, .num_chosen = 2};
  const at::Tensor group = file.get("balancing.mask").to(at::kLong) - 1;  // 0, or -1 for padding
  std::vector<BalancingSums> layers;
  std::vector<at::Tensor> ours, theirs;
  for (const char* layer : {"0", "1", "2"}) {
    for (auto* leaves : {&ours, &theirs}) {
      leaves->push_back(
          file.get(std::string("balancing.logits.") + layer).clone().requires_grad_());
    }
    layers.push_back(balancing_sums(ours.back(), group, 1, rule));
  }
  const at::Tensor loss = pooled_balancing_loss(layers, rule);
  const std::vector<int64_t> groups(group.data_ptr<int64_t>(), group.data_ptr<int64_t>() + 40);
  const at::Tensor golden = golden::dense_pooled_loss(theirs, groups, rule);
  CHECK(at::allclose(loss, file.get("balancing.loss"), 0, kAgreement));
  CHECK(at::allclose(golden, file.get("balancing.loss"), 0, kAgreement));
  loss.backward();
  golden.backward();
  at::Tensor of_layers = at::zeros({}, at::kDouble);
  for (size_t i = 0; i < ours.size(); ++i) {
    const at::Tensor grad = file.get("balancing.grad_logits." + std::to_string(i));
    CHECK(at::allclose(ours[i].grad(), grad, 0, kAgreement));
    CHECK(at::allclose(theirs[i].grad(), grad, 0, kAgreement));
    of_layers = of_layers + balancing_losses(layers[i], rule).sum();
  }
  // It is not the sum of the layers' losses.
  CHECK(std::abs(of_layers.item<double>() / 3 * 2 - loss.item<double>()) > 1e-3);
}

TEST_CASE("An attached side loss adds its gradient and changes no value", "[moe][MR-13]") {
  const RouterRule rule{.num_experts = 5, .num_chosen = 2};
  const at::Tensor group = at::zeros({7}, at::kLong), grad = drawn({7, 2}, 12);
  const at::Tensor ids = select_experts(drawn({7, 5}, 10), {}, rule).ids;
  const double factor = GENERATE(0.0, 0.25, -3.0);
  // The router may be frozen: x is the stream below it, and the loss still reaches it.
  const auto gradient_of_x = [&](bool attached) {
    const at::Tensor x = drawn({7, 5}, 10).requires_grad_(), logits = x * 2;
    const at::Tensor weights = route_weights(logits, ids, rule);
    const at::Tensor loss = balancing_losses(balancing_sums(logits, group, 1, rule), rule).sum();
    if (attached) {
      const at::Tensor carried = with_side_loss(weights, loss, factor);
      CHECK(at::equal(carried, weights));
      carried.backward(grad);
    } else {
      ((weights * grad).sum() + factor * loss).backward();
    }
    return x.grad();
  };
  CHECK(at::allclose(gradient_of_x(true), gradient_of_x(false), 0, kAgreement));
  const at::NoGradGuard no_grad;
  const at::Tensor weights = drawn({7, 2}, 13);
  CHECK_FALSE(with_side_loss(weights, weights.sum(), factor).requires_grad());
}

TEST_CASE("A gradient that is not known yet is the one that stands there in the backward",
          "[moe][MR-13]") {
  const at::Tensor x = drawn({7, 2}, 10).requires_grad_();
  const at::Tensor later = at::zeros({2}, at::kDouble);
  const at::Tensor carried = with_later_gradient(x * 3, x.sum(0), later);
  later.copy_(at::tensor({0.5, -2.0}));
  carried.sum().backward();
  CHECK(at::equal(x.grad(), (later + 3).expand({7, 2})));
}

TEST_CASE("The bias of an expert with fewer routes than the average rises, by the golden's rule",
          "[moe][MR-6]") {
  for (const bool centered : {false, true}) {
    const BiasRule rule{.rate = 1e-3, .centered = centered};
    at::Tensor bias = drawn({6}, 2);
    std::vector<double> golden(bias.data_ptr<double>(), bias.data_ptr<double>() + 6);
    for (const std::vector<int64_t>& counts : std::vector<std::vector<int64_t>>{
             {4, 0, 3, 2, 9, 0}, {3, 3, 3, 3, 3, 3}, {0, 0, 0, 0, 0, 7}, {1, 0, 0, 0, 0, 0}}) {
      bias = bias + selection_bias_move(numbers(counts), rule);
      golden = golden::dense_bias_update(golden, counts, rule);
      for (int64_t i = 0; i < 6; ++i) {
        CHECK(bias[i].item<double>() == Approx(golden[i]).epsilon(1e-14));
      }
    }
  }
  CHECK(at::equal(selection_bias_move(numbers({1, 3}), {.rate = 0.5}),
                  at::tensor({0.5, -0.5}, at::kDouble)));
}

TEST_CASE("Counts of routes leave padding out", "[moe][MR-6][MR-14]") {
  const at::Tensor ids = numbers({0, 3, -1, -1, 3, 1}).view({3, 2});
  CHECK(at::equal(route_counts(ids, 5), numbers({1, 1, 0, 2, 0})));
  CHECK(at::equal(route_counts(ids.narrow(0, 1, 1), 5), numbers({0, 0, 0, 0, 0})));
}

}  // namespace shardproof::tests
