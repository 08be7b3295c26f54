#include "sim/world/rank/token_runs.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

namespace shardproof::sim::world {

using Rows = std::vector<std::vector<TokenRun>>;

TEST_CASE("neighbours of one sample are one run, and so is padding", "[tokens]") {
  const at::Tensor map = at::tensor({0, 1, -1, -1, 3, 10, 11, 9}, at::kLong).view({2, 4});
  // With S = 10, entries 10 and 11 are tokens 0 and 1 of sample 1, and 9 is the last of sample 0.
  CHECK((token_runs(map, 10) == Rows{{{0, 0, 2}, {-1, 0, 2}}, {{0, 3, 1}, {1, 0, 2}, {0, 9, 1}}}));
}

TEST_CASE("the last token of a sample and the first of the next are no neighbours", "[tokens]") {
  const at::Tensor map = at::arange(6).view({1, 6});
  CHECK((token_runs(map, 3) == Rows{{{0, 0, 3}, {1, 0, 3}}}));
}

TEST_CASE("tokens as JSON: rows where asked for, nothing where there are too many", "[tokens]") {
  const std::vector<HeldTokens> held = {{.rows = at::tensor({0, 1, 2, -1}, at::kLong).view({1, 4}),
                                         .held = at::tensor({0, -1}, at::kLong).view({1, 2})}};
  CHECK(held_json(held, 5, /*with_whole_rows=*/false).dump() ==
        R"([{"held":[[[0,0,1],[-1,0,1]]]}])");
  CHECK(held_json(held, 5, /*with_whole_rows=*/true).dump() ==
        R"([{"held":[[[0,0,1],[-1,0,1]]],"rows":[[[0,0,3],[-1,0,1]]]}])");
  CHECK(held_json(held, 5, /*with_whole_rows=*/true, /*most_positions=*/3).is_null());
}

}  // namespace shardproof::sim::world
