#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "sim/judge/explain/hypotheses.h"
#include "tests/unit/judge/planted_world.h"

namespace shardproof::sim::judge {
namespace {

TEST_CASE("Tokens that chose other experts are named with both choices", "[explanations]") {
  const Mesh mesh({{"dp", 2}});
  const at::Tensor golden =
      at::tensor({0, 1, 2, 3, 0, 3, 1, 2, 1, 3, 0, 2}, at::kDouble).view({2, 3, 2});
  at::Tensor actual = golden.clone();
  actual[1][0] = at::tensor({0, 2}, at::kDouble);
  actual[1][2] = at::tensor({2, 3}, at::kDouble);
  const auto proposed = [&](const std::string& name, const at::Tensor& values) {
    const Piece piece = judge::piece_of(values, golden, name);
    ResultRow row(Outcome::kMismatch);
    row.name = name;
    const Symptoms symptoms{
        .mesh = mesh, .precision = Precision::kFloat64, .rows = {&row}, .pieces = {&piece}};
    Difference difference(symptoms);
    if (difference.first_copies) difference.first_copies->token_dims = true;
    return propose_routes(difference);
  };
  const std::string name = "model.layers.0.mlp.gate.ids.output";
  const auto found = proposed(name, actual);
  REQUIRE(found);
  CHECK(found->pattern ==
        "2 of 6 tokens chose other experts: sample 1, position 0 chose 0, 2 in place of 1, 2");
  CHECK_FALSE(proposed(name, golden));
  CHECK_FALSE(proposed("model.layers.0.mlp.gate.output", actual));
}

}  // namespace
}  // namespace shardproof::sim::judge
