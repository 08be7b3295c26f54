// Gradient rules: the members and calls of each sum, and what is summed already.
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

// A norm under sequence parallelism, a shared kv head, a frozen norm, a sharded weight, and a
// weight whose backward has summed over all ranks.
std::vector<ParameterPtr> parameters() {
  const auto shared = [](Parameter made) { return std::make_shared<Parameter>(std::move(made)); };
  std::vector<ParameterPtr> all = {
      shared(parameter("norm", Layout(), {.sum_over = {"tp"}})),
      shared(parameter("k_proj", Layout({Cut::repeated(0, "tp", 2)}), {.sum_over = {"tp%2"}})),
      shared(parameter("frozen", Layout(), {.sum_over = {"tp"}})),
      shared(parameter("sharded", Layout({Cut::even(0, "tp")}), {})),
      shared(parameter("expert", Layout(), {.summed_over = {"dp", "tp"}}))};
  all[2]->trainable = false;
  return all;
}

at::Tensor grad_of(size_t index, int64_t rank) {
  return random_tensor({3}, static_cast<int64_t>(index) * 100 + rank);
}

TEST_CASE(
    "addends are summed over their axis or among the sharers of a part, nothing else is touched",
    "[tp][MP-4][SH-2]") {
  const Mesh mesh =
      Mesh::training({.dp = 2, .tp = 4});  // kv head 0 on tp ranks 0, 1; head 1 on 2, 3
  const auto results = on_every_rank(mesh, [&](MeshComm& comm, int64_t rank) -> NamedResults {
    const auto all = parameters();
    std::vector<at::Tensor> grads;
    for (size_t i = 0; i < all.size(); ++i) grads.push_back(grad_of(i, rank));
    apply_gradient_rules(all, grads, comm);
    NamedResults result;
    for (size_t i = 0; i < all.size(); ++i) result[all[i]->name] = grads[i];
    return result;
  });
  for (int64_t rank = 0; rank < 8; ++rank) {
    const NamedResults& result = results[static_cast<size_t>(rank)];
    const int64_t first = rank / 4 * 4, sharer = rank / 2 * 2;
    at::Tensor over_tp = at::zeros({3}, at::kDouble);
    for (int64_t peer = first; peer < first + 4; ++peer) over_tp += grad_of(0, peer);
    CHECK(difference(over_tp, result.at("norm")) == "");
    CHECK(difference(grad_of(1, sharer) + grad_of(1, sharer + 1), result.at("k_proj")) == "");
    CHECK(result.at("frozen").equal(grad_of(2, rank)));
    CHECK(result.at("sharded").equal(grad_of(3, rank)));
    CHECK(result.at("expert").equal(grad_of(4, rank) / 8));
  }
}

TEST_CASE("a parameter that one rank did not use counts as zeros, and every rank makes the call",
          "[tp][SH-2]") {
  std::vector<CallLog> logs(4);
  std::vector<at::Tensor> summed(4);
  const RankRuns runs = try_emulated_ranks(Mesh::training({.tp = 4}),
                                           [&](MeshComm& comm, int64_t rank) {
                                             const auto all = parameters();
                                             if (rank != 2)
                                               all[0]->tensor.mutable_grad() =
                                                   at::full({3}, 1.0 + rank, at::kDouble);
                                             std::vector<at::Tensor> grads;
                                             for (const ParameterPtr& one : all)
                                               grads.push_back(gradient_of(*one));
                                             apply_gradient_rules(all, grads, comm);
                                             summed[static_cast<size_t>(rank)] = grads[0];
                                           },
                                           {&logs[0], &logs[1], &logs[2], &logs[3]});
  for (int64_t rank = 0; rank < 4; ++rank) {
    REQUIRE(runs.error_text(rank) == "");
    CHECK(summed[static_cast<size_t>(rank)].equal(at::full({3}, 7.0, at::kDouble)));
    CHECK(logs[static_cast<size_t>(rank)].calls ==
          std::vector<std::string>{"all_reduce grad.norm", "all_reduce grad.k_proj"});
  }
}

}  // namespace
}  // namespace shardproof::tests
