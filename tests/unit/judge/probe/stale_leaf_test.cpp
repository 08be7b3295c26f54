// The copy of a parameter that the forward reads is its rounded value.
#include "sim/judge/probe/stale_leaf.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <limits>

namespace shardproof::sim::judge {
namespace {

TEST_CASE("a copy that an update did not reach is named with its first element") {
  const at::Tensor master = at::tensor({0.1F, 0.2F, 0.3F, 0.4F}).view({2, 2});
  at::Tensor leaf = master.to(at::kBFloat16);
  CHECK(stale_leaf(leaf, master).empty());
  leaf[1][0] = 0.5;
  CHECK_THAT(stale_leaf(leaf, master),
             Catch::StartsWith("its bfloat16 copy, which the next forward reads") &&
                 Catch::Contains("1 of 4 elements (the first is 0.5, not 0.300781)"));
  // The neighbour of the rounded value is another number.
  const at::Tensor next = at::tensor({1.0F + 0.0079F}).to(at::kBFloat16);
  CHECK_FALSE(stale_leaf(next, at::tensor({1.0F})).empty());
}

TEST_CASE("a value that is no number has a copy that is none") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor master = at::tensor({nan, 1.0F});
  CHECK(stale_leaf(master.to(at::kHalf), master).empty());
  CHECK_FALSE(stale_leaf(at::tensor({2.0F, 1.0F}).to(at::kHalf), master).empty());
  CHECK(stale_leaf(at::empty({0}, at::kHalf), at::empty({0}, at::kFloat)).empty());
}

}  // namespace
}  // namespace shardproof::sim::judge
