#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "sim/judge/explain/hypotheses.h"
#include "tests/unit/judge/planted_world.h"

namespace shardproof::sim::judge {
namespace {

TEST_CASE("a sum that counts twice is seen behind a bias that is right", "[explanations]") {
  const Mesh mesh({{"dp", 2}, {"tp", 3}});
  const at::Tensor product = numbered({3, 7, 4}, 6), bias = numbered({4}, 2);
  const at::Tensor golden = product + bias;
  const auto found = propose_factor_before_bias(whole(3 * product + bias, golden, true), mesh);
  REQUIRE(found);
  CHECK_THAT(found->pattern, Catch::Contains("3 x golden plus one vector of 4") &&
                                 Catch::Contains("3 is the size of tp"));
  CHECK_THAT(found->likely, Catch::Contains("summed once too often over tp"));
  const auto less = propose_factor_before_bias(whole(product / 6 + bias, golden, true), mesh);
  REQUIRE(less);
  CHECK_THAT(less->pattern, Catch::Contains("1/6 x golden") && Catch::Contains("dp x tp"));
  for (const at::Tensor& other : {2.5 * product + bias, numbered({3, 7, 4}, 9), golden + bias,
                                  3 * product + bias + 0.5 * numbered({3, 7, 4}, 8)}) {
    CHECK_FALSE(propose_factor_before_bias(whole(other, golden, true), mesh));
  }
}

}  // namespace
}  // namespace shardproof::sim::judge
