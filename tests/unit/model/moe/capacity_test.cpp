// Legend: T tokens, N experts, K chosen per token, C capacity.
#include "model/moe/capacity.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <limits>

#include "golden/dense_capacity.h"
#include "golden/dense_routes.h"
#include "model/moe/selection.h"
#include "tests/unit/model/moe/rules.h"

namespace shardproof::tests {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<int64_t> list_of(const at::Tensor& numbers) {
  const at::Tensor whole = numbers.contiguous();
  return {whole.data_ptr<int64_t>(), whole.data_ptr<int64_t>() + whole.numel()};
}

}  // namespace

TEST_CASE("The capacity is the share of an expert times the factor, rounded up", "[moe][MR-7]") {
  const auto capacity = [](int64_t tokens, int64_t experts, int64_t chosen, CapacityRule rule) {
    return expert_capacity(tokens, {.num_experts = experts, .num_chosen = chosen}, rule);
  };
  CHECK(capacity(8, 4, 2, {.factor = 1}) == 4);
  CHECK(capacity(9, 4, 2, {.factor = 1}) == 5);      // 4.5
  CHECK(capacity(10, 8, 1, {.factor = 1.25}) == 2);  // 1.5625
  CHECK(capacity(10, 8, 1, {.factor = 1.25, .minimum = 4}) == 4);
  CHECK(capacity(0, 8, 1, {.factor = 1.25}) == 0);
  CHECK(capacity(100, 10, 1, {.factor = 1.1}) == 11);  // 100 * 1.1 / 10 would be 12
}

TEST_CASE("Experts keep the routes that the golden keeps, by weight and by position",
          "[moe][MR-7]") {
  const RouterRule router{.num_experts = 6, .num_chosen = 2, .scores = RouterScores::kSoftmaxOfAll};
  for (const auto policy : {DropPolicy::kProbs, DropPolicy::kPosition}) {
    for (const double factor : {0.1, 0.6, 1.0, 1.5, 6.0}) {
      const CapacityRule rule{.factor = factor, .minimum = factor < 0.2 ? 2 : 0, .policy = policy};
      INFO("position: " << (policy == DropPolicy::kPosition) << ", factor " << factor);
      // Groups of 20, 1, 0 and 9 tokens that take turns, and padding between them.
      std::vector<int64_t> groups(40, -1);
      for (int64_t t = 0; t < 40; ++t) {
        groups[t] = t % 4 == 3 ? -1 : t == 5 ? 1 : (t < 28 || t % 2 == 0) ? 0 : 3;
      }
      const at::Tensor group = numbers(groups), real = group.ge(0);
      at::Tensor logits = drawn({40, 6}, 5);
      logits.select(1, 2).add_(1.5);  // one expert that many want
      const at::Tensor ids = select_experts(logits, {}, router, real).ids;
      const at::Tensor weights = route_weights(logits, ids, router);
      const KeptRoutes kept = routes_within_capacity(ids, weights, group, router, rule);

      const at::Tensor chosen = golden::choose_experts(logits, {}, router).chosen;
      const at::Tensor mixture = golden::mixture_weights(logits, chosen, router);
      const golden::DenseKept golden =
          golden::keep_within_capacity(chosen, mixture, groups, router, rule);
      const at::Tensor dense =
          at::zeros({40, 6}, at::kBool).scatter(1, ids.clamp_min(0), kept.kept);
      CHECK(at::equal(dense, golden.kept));
      CHECK(kept.margin == Approx(golden.margin).margin(1e-14));
      const int64_t routes = ids.ge(0).sum().item<int64_t>();
      CHECK((kept.kept.sum().item<int64_t>() < routes) == (factor < 2));
      CHECK((kept.margin == kInfinity) == (policy == DropPolicy::kPosition || factor > 2));
    }
  }
}

TEST_CASE("Of equal weights an expert keeps the first token's, and the margin is 0",
          "[moe][MR-7]") {
  const RouterRule router{.num_experts = 2, .num_chosen = 1};
  const at::Tensor ids = numbers({0, 0, 0, 1}).view({4, 1});
  const at::Tensor weights = at::full({4, 1}, 0.5, at::kDouble);
  const KeptRoutes kept =
      routes_within_capacity(ids, weights, numbers({0, 0, 0, 0}), router, {.factor = 1});
  CHECK(list_of(kept.kept.to(at::kLong)) == std::vector<int64_t>{1, 1, 0, 1});
  CHECK(kept.margin == 0);

  RouterRule careful = router;
  careful.least_margin = kLeastMargin;
  const auto keep = [&](const at::Tensor& of) {
    return routes_within_capacity(ids, of, numbers({0, 0, 0, 0}), careful, {.factor = 1});
  };
  CHECK_THROWS_WITH(keep(weights), Catch::Contains("whose weights differ by 0.0e+00"));
  CHECK_NOTHROW(keep(at::tensor({0.5, 0.6, 0.4, 0.5}, at::kDouble).view({4, 1})));
}

TEST_CASE("A capacity of nothing but padding is empty", "[moe][MR-7]") {
  const RouterRule router{.num_experts = 2, .num_chosen = 1};
  const KeptRoutes kept =
      routes_within_capacity(numbers({-1, -1}).view({2, 1}), at::zeros({2, 1}, at::kDouble),
                             numbers({-1, -1}), router, {.factor = 1});
  CHECK_FALSE(kept.kept.any().item<bool>());
  CHECK(kept.margin == kInfinity);
}

}  // namespace shardproof::tests
