// The order of features in fused blocks, the calls of a linear, and a refusal. The values of the
// layers and of their gradients are those of scenarios/layers and scenarios/tp.
#include <catch2/catch.hpp>

#include "parallel/tp/blocks.h"
#include "parallel/tp/column_parallel.h"
#include "parallel/tp/row_parallel.h"
#include "tests/unit/parallel/tp/tp_layer_world.h"

namespace shardproof::tests {
namespace {

TEST_CASE("blocks of features go to rank order and back", "[tp][TP-1][TP-2]") {
  const at::Tensor full = at::arange(12);
  const at::Tensor by_rank = in_rank_order(full, 0, {6, 3, 3}, 3);
  CHECK(by_rank.equal(at::tensor({0, 1, 6, 9, 2, 3, 7, 10, 4, 5, 8, 11}, at::kLong)));
  CHECK(in_full_order(by_rank, 0, {6, 3, 3}, 3).equal(full));
  CHECK(in_rank_order(full, 0, {12}, 3).equal(full));
  const std::string said = said_by([&] { in_rank_order(full, 0, {8, 4}, 3); });
  CHECK(contains(said, "refused: a block 8 does not divide by the 3 ranks of tp"));
}

TEST_CASE("a bias that each rank would add before the caller's sum is refused", "[tp][TP-2]") {
  MeshComm alone(Mesh({{"tp", 1}}), 0, nullptr, nullptr);
  const ParameterPtr weight = leaf("w", at::ones({2, 5})), bias = leaf("b", at::ones({2}));
  const std::string said = said_by([&] {
    RowParallelLinear(weight, bias, alone.along("tp"),
                      {.label = "down", .caller_communicates = true});
  });
  CHECK(contains(said, "refused: 'down' adds its bias before the caller sums over 1 ranks"));
}

TEST_CASE("calls of a linear: one reduction behind the weight gradient, none without need",
          "[tp][TP-4]") {
  const auto calls_of = [](ColumnParallelLinear::Options options, bool frozen, bool input_grad) {
    return calls_of_ranks(Mesh({{"tp", 2}}), [&](MeshComm& comm, int64_t) {
      const ParameterPtr weight = leaf("w", at::ones({2, 5}, at::kDouble));
      weight->tensor.requires_grad_(!frozen);
      ColumnParallelLinear layer(weight, leaf("b", at::ones({2}, at::kDouble)), comm.along("tp"),
                                 options);
      const at::Tensor x = at::ones({1, 6, 5}, at::kDouble).requires_grad_(input_grad);
      run_layer(layer, x).sum().backward();
    })[0];
  };
  using Calls = std::vector<std::string>;
  const ColumnParallelLinear::Options plain = {.label = "l", .async_grad = true};
  const ColumnParallelLinear::Options silent = {
      .label = "l", .caller_communicates = true, .async_grad = true};
  const ColumnParallelLinear::Options sp = {
      .label = "l", .sequence_parallel = true, .async_grad = true};
  CHECK(calls_of(plain, false, true) == Calls{"all_reduce l backward"});
  CHECK(calls_of(plain, false, false).empty());
  CHECK(calls_of(silent, false, true).empty());
  CHECK(calls_of(sp, false, true) ==
        Calls{"all_gather l forward", "all_gather l regather", "reduce_scatter l backward"});
  CHECK(calls_of(sp, true, true) == Calls{"all_gather l forward", "reduce_scatter l backward"});
}

}  // namespace
}  // namespace shardproof::tests
