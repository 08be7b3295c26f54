#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "sim/judge/explain/hypotheses.h"
#include "tests/unit/judge/planted_world.h"

namespace shardproof::sim::judge {
namespace {

constexpr const char* kOutput = "model.layers.0.self_attn.attention.output";

std::optional<Proposal> found_for(const at::Tensor& actual, const at::Tensor& golden,
                                  const std::string& name = kOutput) {  // [B, S, heads, channels]
  return propose_head_factors(whole(actual.flatten(2), golden.flatten(2), true, name),
                              Mesh({{"cp", 2}}));
}

TEST_CASE("An attention whose weights are divided by another sum is seen by head and token",
          "[explanations]") {
  const at::Tensor golden = numbered({2, 5, 3, 4}, 6);
  const at::Tensor sum = 1 + numbered({2, 5, 3, 1}, 2).abs(), sink = numbered({3, 1}, 3).abs() + 1;
  const auto twice = found_for(golden * (sum + sink) / (sum + 2 * sink), golden);
  REQUIRE(twice);
  CHECK_THAT(twice->pattern, Catch::Contains("each token's head is a multiple") &&
                                 Catch::Contains(": 30 heads of tokens"));
  CHECK_THAT(twice->likely, Catch::Contains("too large a sum"));
  const auto never = found_for(golden * (sum + sink) / sum, golden);
  REQUIRE(never);
  CHECK_THAT(never->likely, Catch::Contains("too small a sum"));
  const auto others = found_for(golden * (sum + sink) / (sum + sink.flip(0)), golden);
  REQUIRE(others);
  CHECK_THAT(others->likely, Catch::Contains("is that of another head"));
}

TEST_CASE("Other errors of an attention are no factors of heads", "[explanations]") {
  const at::Tensor golden = numbered({2, 5, 3, 4}, 6);
  const at::Tensor factors = 1 + numbered({2, 5, 3, 1}, 2).abs();
  CHECK_FALSE(found_for(2 * golden, golden));                 // one factor
  CHECK_FALSE(found_for(-factors * golden, golden));          // no sum of weights
  CHECK_FALSE(found_for(numbered({2, 5, 3, 4}, 9), golden));  // random values
  CHECK_FALSE(found_for(factors * golden + 0.01 * numbered({2, 5, 3, 4}, 9), golden));
  CHECK_FALSE(found_for(golden * (1 + numbered({4}, 2).abs()), golden));  // factors of channels
  CHECK_FALSE(found_for(factors * golden, golden, "model.layers.0.mlp.output"));
}

}  // namespace
}  // namespace shardproof::sim::judge
