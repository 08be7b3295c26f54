// The calls of gradient rules: which gradients are summed, and over whom.
#include "parallel/style/gradient_rules.h"

#include <catch2/catch.hpp>

#include "model/precision.h"
#include "tests/support/rank_results.h"

namespace shardproof::tests {
namespace {

Parameter parameter(const std::string& name, Layout layout, GradientRule rule) {
  return {.name = name,
          .tensor = at::zeros({3}, at::kDouble).requires_grad_(),
          .layout = std::move(layout),
          .rule = std::move(rule)};
}

// A norm under sequence parallelism, a shared kv head, a frozen norm, a sharded weight, a weight
// whose backward has summed over all ranks, and one that the first and the last rank hold.
std::vector<ParameterPtr> parameters() {
  const auto shared = [](Parameter made) { return std::make_shared<Parameter>(std::move(made)); };
  std::vector<ParameterPtr> all = {
      shared(parameter("norm", Layout(), {.sum_over = {"tp"}})),
      shared(parameter("k_proj", Layout({Cut::repeated(0, "tp", 2)}), {.sum_over = {"tp%2"}})),
      shared(parameter("frozen", Layout(), {.sum_over = {"tp"}})),
      shared(parameter("sharded", Layout({Cut::even(0, "tp")}), {})),
      shared(parameter("expert", Layout(), {.mean_over = std::vector<std::string>{}})),
      shared(parameter("tied", Layout({Cut::held_by("tp", {0, 3})}), {.sum_over_holders = "tp"}))};
  all[2]->trainable = false;
  return all;
}

TEST_CASE("a parameter that one rank did not use counts as zeros, and every rank makes the call",
          "[tp][MP-4][SH-2]") {
  std::vector<std::vector<at::Tensor>> summed(4);
  const auto calls = calls_of_ranks(Mesh::training({.tp = 4}), [&](MeshComm& comm, int64_t rank) {
    const auto all = parameters();
    if (rank != 2) all[0]->tensor.mutable_grad() = at::full({3}, 1.0 + rank, at::kDouble);
    all[1]->tensor.mutable_grad() = at::full({3}, 1.0 + rank, at::kDouble);
    for (const size_t i : {4, 5}) {
      all[i]->tensor.mutable_grad() = at::full({3}, 1.0 + rank, at::kDouble);
    }
    std::vector<at::Tensor>& grads = summed[static_cast<size_t>(rank)];
    for (const ParameterPtr& one : all) grads.push_back(gradient_of(*one));
    apply_gradient_rules(all, grads, comm, {"tp"});
  });
  for (size_t rank = 0; rank < 4; ++rank) {
    CHECK(summed[rank][0].equal(at::full({3}, 7.0, at::kDouble)));
    // kv head 0 is on ranks 0 and 1, head 1 on 2 and 3.
    CHECK(summed[rank][1].equal(at::full({3}, rank < 2 ? 3.0 : 7.0, at::kDouble)));
    // No mean is taken, and the factor of the loss is 4.
    CHECK(summed[rank][4].equal(at::full({3}, (1.0 + rank) / 4, at::kDouble)));
    const bool holds = rank == 0 || rank == 3;
    CHECK(summed[rank][5].equal(at::full({3}, holds ? 5.0 : 1.0 + rank, at::kDouble)));
    std::vector<std::string> expected = {"all_reduce grad.norm", "all_reduce grad.k_proj"};
    if (holds) expected.push_back("all_reduce grad.tied");
    CHECK(calls[rank] == expected);
  }
}

}  // namespace
}  // namespace shardproof::tests
