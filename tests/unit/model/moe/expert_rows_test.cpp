// Legend: T tokens, N experts, K chosen per token, E model dim, F width of an expert.
#include "model/moe/expert_rows.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "golden/dense_experts.h"
#include "golden/dense_routes.h"
#include "model/moe/capacity.h"
#include "model/moe/selection.h"
#include "tensor/safetensors.h"
#include "tests/unit/model/moe/rules.h"

namespace shardproof::tests {
namespace {

// The leaves of one run of the experts; every element is different.
struct Leaves {
  at::Tensor x, weights, gate_up, down;
  std::vector<at::Tensor> all() const { return {x, weights, gate_up, down}; }
};

Leaves leaves_of(const at::Tensor& x, const at::Tensor& weights, int64_t experts, int64_t width) {
  const int64_t hidden = x.size(1);
  return {.x = x.clone().requires_grad_(),
          .weights = weights.detach().clone().requires_grad_(),
          .gate_up = drawn({experts, 2 * width, hidden}, 21).requires_grad_(),
          .down = drawn({experts, hidden, width}, 22).requires_grad_()};
}

at::Tensor run(const Leaves& at, const ExpertRows& rows) {
  const at::Tensor both = grouped_linear(gather_rows(at.x, rows), at.gate_up, {}, rows);
  const std::vector<at::Tensor> halves = both.chunk(2, -1);
  const at::Tensor active = at::silu(halves[0]) * halves[1];
  return combine_rows(grouped_linear(active, at.down, {}, rows), at.weights, rows);
}

// Kernels round otherwise where a product has other rows: up to a part of the largest value.
bool agree(const at::Tensor& a, const at::Tensor& b, double part = kAgreement) {
  return at::allclose(a, b, 0, part * std::max(1.0, a.abs().max().item<double>()));
}

}  // namespace

TEST_CASE("Rows of experts and their sum are the golden's, and so are all gradients",
          "[moe][EP-5]") {
  // The second rule sends all tokens to few experts.
  const bool crowded = GENERATE(false, true);
  const RouterRule router{.num_experts = 5, .num_chosen = 2, .scores = RouterScores::kSoftmaxOfAll};
  at::Tensor logits = drawn({14, 5}, 11);
  if (crowded) logits.narrow(1, 1, 2).add_(20);
  const at::Tensor real = at::arange(14, at::kLong).remainder(5).ne(3);
  const at::Tensor x = drawn({14, 6}, 12), grad = drawn({14, 6}, 13);
  const Selection selection = select_experts(logits, {}, router, real);
  const ExpertRows rows = rows_by_expert(selection.ids, 5);
  CHECK(rows.routes.numel() == 22);
  CHECK((std::count(rows.counts.begin(), rows.counts.end(), 0) == 3) == crowded);

  const Leaves sparse = leaves_of(x, route_weights(logits, selection.ids, router), 5, 4);
  const at::Tensor y = run(sparse, rows);
  y.backward(grad);

  at::Tensor chosen = golden::choose_experts(logits, {}, router).chosen;
  chosen = chosen.logical_and(real.unsqueeze(1));
  const Leaves dense =
      leaves_of(x, golden::mixture_weights(logits, chosen, router).nan_to_num(0), 5, 4);
  const at::Tensor golden =
      golden::dense_experts(dense.x, dense.weights, dense.gate_up, dense.down, Activation::kSilu);
  golden.backward(grad);
  CHECK(at::allclose(y, golden, 0, 1e-12));
  CHECK(y.index({real.logical_not()}).abs().max().item<double>() == 0);
  CHECK(at::allclose(sparse.x.grad(), dense.x.grad(), 0, 1e-12));
  CHECK(at::allclose(sparse.gate_up.grad(), dense.gate_up.grad(), 0, 1e-12));
  CHECK(at::allclose(sparse.down.grad(), dense.down.grad(), 0, 1e-12));
  const at::Tensor of_routes = dense.weights.grad()
                                   .gather(1, selection.ids.clamp_min(0))
                                   .masked_fill(selection.ids.lt(0), 0);
  CHECK(at::allclose(sparse.weights.grad(), of_routes, 0, 1e-12));
  for (int64_t i = 0; i < 5; ++i) {
    const bool busy = rows.counts[static_cast<size_t>(i)] > 0;
    CHECK((sparse.down.grad()[i].abs().max().item<double>() > 0) == busy);
  }
}

TEST_CASE("Rows that only pad change no value and no gradient", "[moe][MR-8]") {
  const RouterRule router{.num_experts = 4, .num_chosen = 2};
  const at::Tensor logits = drawn({9, 4}, 31), x = drawn({9, 3}, 32), grad = drawn({9, 3}, 33);
  const at::Tensor ids = select_experts(logits, {}, router).ids;
  const at::Tensor weights = route_weights(logits, ids, router);
  const CapacityRule rule{.factor = 0.8};
  const at::Tensor kept =
      routes_within_capacity(ids, weights, at::zeros({9}, at::kLong), router, rule).kept;
  const ExpertRows rows = rows_by_expert(ids, 4, kept), padded = padded_rows(rows, 8);
  CHECK(rows.routes.numel() < 18);
  CHECK(padded.counts == std::vector<int64_t>(4, 8));
  CHECK(padded.routes.numel() == 32);
  const Leaves plain = leaves_of(x, weights, 4, 5), with_pads = leaves_of(x, weights, 4, 5);
  const at::Tensor y = run(plain, rows), padded_y = run(with_pads, padded);
  CHECK(agree(y, padded_y));
  y.backward(grad);
  padded_y.backward(grad);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(agree(plain.all()[i].grad(), with_pads.all()[i].grad(), 1e-13));
  }
  // A dropped route adds nothing, and its weight has no gradient.
  CHECK(plain.weights.grad().index({kept.logical_not()}).abs().max().item<double>() == 0);
  // A bias in a row that only pads is not combined.
  const at::Tensor bias = drawn({4, 3}, 34);
  const at::Tensor zero = at::zeros({4, 3, 3}, at::kDouble);
  CHECK(agree(
      combine_rows(grouped_linear(gather_rows(x, rows), zero, bias, rows), weights, rows),
      combine_rows(grouped_linear(gather_rows(x, padded), zero, bias, padded), weights, padded)));
  const ExpertRows some = padded_rows({.routes = at::arange(6, at::kLong), .counts = {4, 0, 2}}, 3);
  CHECK(some.counts == std::vector<int64_t>{6, 0, 3});
  CHECK(at::equal(some.routes, at::tensor({0, 1, 2, 3, -1, -1, 4, 5, -1}, at::kLong)));
}

TEST_CASE("Other tokens of a batch leave the sum of a token as it is", "[moe][EP-17]") {
  const RouterRule router{.num_experts = 4, .num_chosen = 2};
  const auto of = [&](int64_t others) {
    const at::Tensor x = at::cat({drawn({3, 6}, 41), drawn({others, 6}, 42)});
    const at::Tensor logits = at::cat({drawn({3, 4}, 43), drawn({others, 4}, 44)});
    const at::Tensor ids = select_experts(logits, {}, router).ids;
    const Leaves leaves = leaves_of(x, route_weights(logits, ids, router), 4, 5);
    return run(leaves, rows_by_expert(ids, 4)).narrow(0, 0, 3).detach();
  };
  CHECK(agree(of(0), of(9)));
}

TEST_CASE("Experts without any token give an empty sum and gradients of 0", "[moe][EP-5]") {
  CHECK_THROWS_WITH(rows_by_expert(at::full({1, 2}, 4, at::kLong), 3),
                    Catch::Contains("chose expert 4, and the ranks that its row goes to hold 3"));
  const ExpertRows rows = rows_by_expert(at::empty({0, 2}, at::kLong), 3);
  const Leaves leaves =
      leaves_of(at::empty({0, 6}, at::kDouble), at::empty({0, 2}, at::kDouble), 3, 4);
  const at::Tensor y = run(leaves, rows);
  CHECK(y.sizes() == at::IntArrayRef({0, 6}));
  y.sum().backward();
  CHECK(leaves.gate_up.grad().abs().max().item<double>() == 0);
  CHECK(leaves.down.grad().abs().max().item<double>() == 0);
}

TEST_CASE("Experts and golden give the sums and gradients of transformers", "[moe][FM-1]") {
  const SafetensorsFile file = SafetensorsFile::open("golden/hf/routers.safetensors");
  const auto get = [&](const std::string& name) { return file.get("experts." + name).clone(); };
  const at::Tensor ids = get("ids");
  const auto leaves = [&] {
    Leaves at{
        .x = get("x"), .weights = get("weights"), .gate_up = get("gate_up"), .down = get("down")};
    for (const at::Tensor& leaf : at.all()) leaf.requires_grad_();
    return at;
  };
  const Leaves ours = leaves(), theirs = leaves();
  const at::Tensor y = run(ours, rows_by_expert(ids, ours.down.size(0)));
  const at::Tensor dense =
      at::zeros({ids.size(0), theirs.down.size(0)}, at::kDouble).scatter(1, ids, theirs.weights);
  const at::Tensor golden =
      golden::dense_experts(theirs.x, dense, theirs.gate_up, theirs.down, Activation::kSilu);
  CHECK(at::allclose(y, get("y"), 0, 1e-13));
  CHECK(at::allclose(golden, get("y"), 0, 1e-13));
  y.backward(get("grad"));
  golden.backward(get("grad"));
  for (const Leaves& at : {ours, theirs}) {
    CHECK(at::allclose(at.x.grad(), get("grad_x"), 0, 1e-13));
    CHECK(at::allclose(at.weights.grad(), get("grad_weights"), 0, 1e-13));
    CHECK(at::allclose(at.gate_up.grad(), get("grad_gate_up"), 0, 1e-13));
    CHECK(at::allclose(at.down.grad(), get("grad_down"), 0, 1e-13));
  }
}

}  // namespace shardproof::tests
