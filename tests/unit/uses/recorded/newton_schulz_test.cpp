#include "sim/uses/recorded/newton_schulz.h"

#include <catch2/catch.hpp>

namespace shardproof::sim::recorded {

TEST_CASE("the work of an orthogonal update is that of the smaller side's square", "[recorded]") {
  MatrixRule rule;
  rule.iterations = 5;
  // Of each iteration: 4x8 by 8x4, 4x4 by 4x4, and 4x4 by 4x8.
  constexpr double kProducts = 4 * 8 * 4 + 4 * 4 * 4 + 4 * 4 * 8;
  CHECK(work_of(4, 8, rule) == 5 * kProducts);
  CHECK(work_of(8, 4, rule) == 5 * kProducts);
  CHECK(work_of(8192, 8192, rule) == 5 * 3 * 8192.0 * 8192.0 * 8192.0);
}

TEST_CASE("blocks fit where whole patterns of them fill the rows", "[recorded]") {
  CHECK(fits({}, 7));
  CHECK(fits({2, 1}, 6));
  CHECK_FALSE(fits({2, 1}, 7));
  CHECK_FALSE(fits({3, 0}, 6));
  CHECK_FALSE(fits({2, 1}, 0));
}

}  // namespace shardproof::sim::recorded
