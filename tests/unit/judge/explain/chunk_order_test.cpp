// Chunks of a tensor in another order, and the names of such orders.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "sim/judge/explain/hypotheses.h"
#include "tests/unit/judge/planted_world.h"

namespace shardproof::sim::judge {
namespace {

at::Tensor reordered(const at::Tensor& t, const std::vector<int64_t>& order, int64_t dim) {
  const std::vector<at::Tensor> chunks = t.chunk(static_cast<int64_t>(order.size()), dim);
  std::vector<at::Tensor> out;
  for (const int64_t i : order) out.push_back(chunks[static_cast<size_t>(i)]);
  return at::cat(out, dim);
}

const Mesh kThreeByTwo({{"dp", 1}, {"cp", 3}, {"tp", 2}});

std::string order_of(const std::vector<int64_t>& order) {
  const at::Tensor golden = numbered({4, 12, 5}, 9);
  const auto found =
      propose_chunk_order(whole(reordered(golden, order, 1), golden, true), kThreeByTwo);
  REQUIRE(found);
  CHECK(found->share == 1);
  return found->pattern + " | " + found->likely;
}

TEST_CASE("orders of chunks have names on a mesh", "[explanations]") {
  CHECK_THAT(order_of({0, 5, 1, 4, 2, 3}),
             Catch::Contains("zigzag chunks of cp were put together in the order of the ranks"));
  CHECK_THAT(order_of({0, 2, 4, 5, 3, 1}), Catch::Contains("zigzag order of cp once too often"));
  CHECK_THAT(order_of({5, 4, 3, 2, 1, 0}),
             Catch::Contains("two zigzag halves of each rank of cp are swapped"));
  CHECK_THAT(order_of({2, 0, 1}), Catch::Contains("shards of cp were put together in a wrong"));
  CHECK_THAT(order_of({1, 1, 1}),
             Catch::Contains("the part of one rank of cp stands in the place"));
  CHECK_THAT(order_of({1, 0}), Catch::Contains("shards of tp were put together"));
}

TEST_CASE("only positions are cut in zigzag, and fused parts by rank", "[explanations]") {
  CHECK_THAT(order_of({0, 2, 4, 1, 3, 5}), Catch::Contains("three fused parts, such as q, k and v, "
                                                           "are cut by rank of tp"));
  CHECK_THAT(order_of({0, 3, 1, 4, 2, 5}),
             Catch::Contains("two fused halves, such as gate and up, are cut by rank of cp"));
  CHECK_THAT(order_of({0, 1, 2, 5, 4, 3}),
             Catch::Contains("zigzag chunks (6 = 2 x the size of cp)"));
  CHECK_THAT(order_of({3, 0, 5, 1, 2, 4}), !Catch::Contains("zigzag"));
  const at::Tensor golden = numbered({12, 5}, 9);
  for (const std::vector<int64_t>& order :
       {std::vector<int64_t>{0, 5, 1, 4, 2, 3}, {5, 4, 3, 2, 1, 0}, {0, 1, 2, 5, 4, 3}}) {
    Piece weight = piece_of(reordered(golden, order, 0), golden);
    weight.phase = Phase::kStep;
    const auto found = propose_chunk_order(*assemble({&weight}), kThreeByTwo);
    REQUIRE(found);
    CHECK_THAT(found->likely, !Catch::Contains("zigzag"));
  }
}

TEST_CASE("Where values are few, one in the place of another is no order of chunks",
          "[explanations]") {
  // Selection biases after one step: two experts moved another way.
  const at::Tensor golden = at::tensor({1.0, -1.0, 1.0, -1.0, -1.0, 1.0}, at::kDouble) * 0.05;
  at::Tensor actual = golden.clone();
  actual[2] = -0.05;
  actual[4] = 0.05;
  CHECK_FALSE(propose_chunk_order(whole(actual, golden), kThreeByTwo));
  CHECK_FALSE(propose_shift(whole(actual, golden), kThreeByTwo));
  // The same places of other values are one.
  const at::Tensor many = numbered({6}, 9);
  at::Tensor moved = many.clone();
  moved[2] = many[1];
  moved[4] = many[0];
  CHECK(propose_chunk_order(whole(moved, many), kThreeByTwo));
}

TEST_CASE("chunks of one mesh axis may be of uneven length", "[explanations]") {
  const at::Tensor golden = numbered({3, 11, 2}, 4);  // chunks of 4, 4, 3 over cp
  at::Tensor actual = golden.clone();
  actual.narrow(1, 0, 4).copy_(golden.narrow(1, 4, 4));
  actual.narrow(1, 4, 4).copy_(golden.narrow(1, 0, 4));
  const auto found = propose_chunk_order(whole(actual, golden, true), kThreeByTwo);
  REQUIRE(found);
  CHECK_THAT(found->pattern,
             Catch::Contains("the 3 chunks along the positions") && Catch::Contains("1 0 2"));
}

TEST_CASE("an order of chunks that fits only most of them is none", "[explanations]") {
  const at::Tensor golden = numbered({4, 12, 5}, 9);
  at::Tensor actual = reordered(golden, {0, 5, 1, 4, 2, 3}, 1);
  actual.narrow(1, 4, 2).copy_(numbered({4, 2, 5}, 77));
  CHECK_FALSE(propose_chunk_order(whole(actual, golden, true), kThreeByTwo));
}

}  // namespace
}  // namespace shardproof::sim::judge
