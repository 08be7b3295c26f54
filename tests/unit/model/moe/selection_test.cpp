// Legend: T tokens, N experts, K chosen per token.
#include "model/moe/selection.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "base/enum_names.h"
#include "base/expert_choices.h"
#include "golden/dense_routes.h"
#include "tests/support/said_by.h"
#include "tests/unit/model/moe/rules.h"

namespace shardproof::tests {
namespace {

at::Tensor bias_of(const RouterRule& rule) {
  return rule.selection_bias ? drawn({rule.num_experts}, 3) / 8 : at::Tensor();
}

std::string text_of(const RouterRule& rule) {
  return fmt::format("{} normalized={} bias={} groups={}/{} K={}", rule.scores, rule.normalized,
                     rule.selection_bias, rule.chosen_groups, rule.num_groups, rule.num_chosen);
}

// [T, N] bool of ids [T, K].
at::Tensor dense_of(const at::Tensor& ids, int64_t num_experts) {
  return at::zeros({ids.size(0), num_experts}, at::kBool).scatter(1, ids, true);
}

at::Tensor vector_of(std::vector<double> values) { return at::tensor(values, at::kDouble); }

}  // namespace

TEST_CASE("Every rule chooses the golden's experts, with its margin, weights and gradients",
          "[moe][MR-2][MR-4]") {
  int64_t seed = 100;
  for (const RouterRule& rule : all_rules()) {
    INFO(text_of(rule));
    check_router_rule(rule);
    const at::Tensor logits = drawn({400, rule.num_experts}, ++seed) * 2, bias = bias_of(rule);
    const Selection selection = select_experts(logits, bias, rule);
    const golden::DenseRoutes golden = golden::choose_experts(logits, bias, rule);
    CHECK(at::equal(dense_of(selection.ids, rule.num_experts), golden.chosen));
    CHECK(selection.ids.diff(1, 1).gt(0).all().item<bool>());
    CHECK(at::allclose(selection.margin, golden.margin, 0, 1e-14));

    const at::Tensor ours = logits.clone().requires_grad_();
    const at::Tensor theirs = logits.clone().requires_grad_();
    const at::Tensor weights = route_weights(ours, selection.ids, rule);
    const at::Tensor mixture = golden::mixture_weights(theirs, golden.chosen, rule);
    CHECK(at::allclose(weights, mixture.gather(1, selection.ids), 0, 1e-14));
    const at::Tensor grad = drawn({400, rule.num_chosen}, ++seed);
    weights.backward(grad);
    mixture.backward(at::zeros_like(mixture).scatter(1, selection.ids, grad));
    CHECK(at::allclose(ours.grad(), theirs.grad(), 0, 1e-13));
  }
}

TEST_CASE("Among equal scores the lower id is chosen, and the margin is 0", "[moe][MR-3][MR-15]") {
  RouterRule rule{.num_experts = 12, .num_chosen = 4};
  for (const int64_t groups : {1, 4}) {
    rule.num_groups = groups, rule.chosen_groups = (groups + 1) / 2;
    const at::Tensor logits = drawn_integers({2000, 12}, /*most=*/3, groups);
    const Selection selection = select_experts(logits, {}, rule);
    const golden::DenseRoutes golden = golden::choose_experts(logits, {}, rule);
    CHECK(at::equal(dense_of(selection.ids, 12), golden.chosen));
    CHECK(at::equal(selection.margin, golden.margin));
    CHECK(selection.margin.eq(0).sum().item<int64_t>() > 500);
  }
  const Selection all_equal = select_experts(at::zeros({1, 12}, at::kDouble), {}, rule);
  CHECK(at::equal(all_equal.ids, at::tensor({0, 1, 2, 3}, at::kLong).view({1, 4})));

  RouterRule careful{.num_experts = 3, .num_chosen = 1, .least_margin = kLeastMargin};
  const at::Tensor near = vector_of({0, 1, 1 + 1e-9, 3, 1, 2}).view({2, 3});
  CHECK_THROWS_WITH(select_experts(near, {}, careful), Catch::Contains("differ by 1.0e-09"));
  const at::Tensor real = at::tensor({0, 1}).to(at::kBool);
  CHECK_NOTHROW(select_experts(near, {}, careful, real));
  CHECK_THROWS_WITH(refuse_near(vector_of({0.5, -1e-9}), kLeastMargin, "two scores"),
                    Catch::Contains("two scores differ by 1.0e-09"));
  CHECK_NOTHROW(refuse_near(vector_of({0.5, -0.06}), kLeastMargin, "two scores"));
}

TEST_CASE("The selection bias moves the choice and not the weight", "[moe][MR-5]") {
  const RouterRule rule{
      .num_experts = 3, .num_chosen = 1, .scores = RouterScores::kSigmoid, .selection_bias = true};
  const at::Tensor logits = vector_of({0, 1, -1}).view({1, 3}).requires_grad_();
  const Selection selection = select_experts(logits, vector_of({0, 0, 1}), rule);
  CHECK(selection.ids.item<int64_t>() == 2);
  const at::Tensor weight = route_weights(logits, selection.ids, rule);
  CHECK(weight.item<double>() == Approx(0.2689414213699951).epsilon(1e-14));  // 1 / (1 + e)
  CHECK_FALSE(select_experts(logits, vector_of({0, 0, 1}), rule).margin.requires_grad());
  CHECK_THROWS_AS(select_experts(logits, {}, rule), InternalError);
}

TEST_CASE("A token that is padding has ids -1, weights 0, no margin and no gradient",
          "[moe][MR-14]") {
  for (const RouterRule& rule : all_rules()) {
    INFO(text_of(rule));
    // Leading dims [2, 3]; the padding has the scores that would give the least margin.
    at::Tensor logits = drawn({2, 3, rule.num_experts}, 9);
    logits.select(0, 1).select(0, 2).zero_();
    const at::Tensor leaf = logits.requires_grad_();
    at::Tensor real = at::ones({2, 3}, at::kBool);
    real.select(0, 1).select(0, 2).fill_(false);
    const Selection selection = select_experts(leaf, bias_of(rule), rule, real);
    CHECK(at::equal(selection.ids.ge(0).all(-1), real));
    CHECK(at::equal(selection.ids.eq(-1).any(-1), real.logical_not()));
    CHECK(selection.margin.min().item<double>() > 0);
    const at::Tensor weights = route_weights(leaf, selection.ids, rule);
    CHECK(at::equal(weights.ne(0).any(-1), real));
    weights.backward(drawn(weights.sizes(), 10));
    CHECK(leaf.grad().select(0, 1).select(0, 2).abs().max().item<double>() == 0);
  }
}

TEST_CASE("Weights follow ids that a record gave instead of the best ones", "[moe][MR-16]") {
  const RouterRule rule{.num_experts = 4, .num_chosen = 2, .scores = RouterScores::kSoftmaxOfAll};
  const at::Tensor logits = vector_of({3, 2, 1, 0}).view({1, 4});
  const at::Tensor ids = at::tensor({2, 3}, at::kLong).view({1, 2});
  CHECK(at::equal(route_weights(logits, ids, rule), logits.softmax(-1).narrow(1, 2, 2)));
}

TEST_CASE("A rule that contradicts itself or that two frameworks read differently is a sentence",
          "[moe][MR-2][MR-4]") {
  const RouterRule good{.num_experts = 12, .num_chosen = 4};
  check_router_rule(good);
  const auto with = [&](auto change) {
    RouterRule rule = good;
    change(rule);
    return rule;
  };
  const auto message = [](const RouterRule& rule) {
    return said_by([&] { check_router_rule(rule); });
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(message(with([](RouterRule& r) { r.num_chosen = 13; })), Contains("from 1 to 12"));
  CHECK_THAT(message(with([](RouterRule& r) { r.num_chosen = 0; })), Contains("from 1 to 12"));
  CHECK_THAT(message(with([](RouterRule& r) { r.num_chosen = 1; })), Contains("no gradient"));
  CHECK_THAT(message(with([](RouterRule& r) { r.selection_bias = true; })), Contains("sigmoid"));
  CHECK_THAT(message(with([](RouterRule& r) { r.num_groups = 5; })), Contains("5 groups"));
  CHECK_THAT(message(with([](RouterRule& r) { r.num_groups = 4, r.chosen_groups = 5; })),
             Contains("from 1 to 4"));
  CHECK_THAT(message(with([](RouterRule& r) { r.num_groups = 4; })), Contains("more than the 3"));
  CHECK_THAT(message(with([](RouterRule& r) { r.num_groups = 12, r.chosen_groups = 6; })),
             Contains("one expert each"));
  CHECK_THAT(message(with([](RouterRule& r) { r.num_groups = 4, r.chosen_groups = 3; })),
             Contains("choose 6 experts per token"));
  const RouterRule best = with([](RouterRule& r) {
    r.num_groups = 4, r.chosen_groups = 3, r.group_score = GroupScore::kBest;
  });
  CHECK(message(best).empty());
}

}  // namespace shardproof::tests
