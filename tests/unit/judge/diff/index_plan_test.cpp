#include "sim/judge/diff/index_plan.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "tests/unit/judge/judged_world.h"

using namespace shardproof;
using namespace shardproof::sim;

namespace {

// The golden offset of every local element by the plan's runs; -1: it has none.
std::vector<int64_t> planned(const IndexPlan& plan) {
  int64_t count = 1;
  for (const int64_t size : plan.local_shape) count *= size;
  std::vector<int64_t> offsets(static_cast<size_t>(count), -1);
  plan.for_each_run([&](int64_t local, int64_t golden, int64_t length) {
    for (int64_t i = 0; i < length; ++i) {
      REQUIRE(local + i < count);
      REQUIRE(offsets[static_cast<size_t>(local + i)] == -1);
      offsets[static_cast<size_t>(local + i)] = golden + i;
    }
  });
  return offsets;
}

// The offsets by src/tensor, which cuts a tensor that holds its own offsets (+1: padding is 0).
std::vector<int64_t> cut_by_hand(const std::vector<int64_t>& shape, const Layout& layout,
                                 const Mesh& mesh, int64_t rank) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const at::Tensor offsets = at::arange(1, count + 1, at::kLong).view(shape);
  const at::Tensor local = cut(offsets, layout, mesh, rank).contiguous() - 1;
  const int64_t* data = local.const_data_ptr<int64_t>();
  return {data, data + local.numel()};
}

}  // namespace

TEST_CASE("a plan finds each local element in the golden, for every layout and rank", "[plan]") {
  const Mesh mesh = Mesh::training({.dp = 2, .cp = 3, .tp = 4});
  const std::vector<int64_t> shape{12, 24, 5};
  const std::vector<Layout> layouts{
      Layout(),
      Layout({Cut::even(0, "tp")}),
      Layout({Cut::even(1, "cp")}),
      Layout({Cut::even(-2, "tp"), Cut::even(0, "dp")}),
      Layout({Cut::chunk(2, "cp")}),
      Layout({Cut::chunk(2, "tp")}),  // uneven: 2, 2, 1, 0
      Layout({Cut::padded(0, "tp", 16)}),
      Layout({Cut::padded(2, "cp", 6)}),
      Layout({Cut::in_blocks(1, "tp", {4, 12, 8})}),
      Layout({Cut::zigzag(1, "cp")}),
      Layout({Cut::zigzag(1, "cp"), Cut::even(0, "tp")}),
      Layout({Cut::repeated(0, "tp", 2)}),
      Layout({Cut::even(0, "tp"), Cut::chunk(0, "dp")}),
      Layout({Cut::chunk(2, "tp"), Cut::zigzag(1, "cp"), Cut::even(0, "dp")})};
  for (const Layout& layout : layouts) {
    CAPTURE(layout.describe());
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      const IndexPlan plan = make_index_plan(shape, layout, {}, {}, mesh, rank);
      REQUIRE(plan.problem.empty());
      CHECK(plan.local_shape == layout.local_shape(shape, mesh, rank));
      CHECK(planned(plan) == cut_by_hand(shape, layout, mesh, rank));
      CHECK(plan.replicas == layout.resolved(3).replicas_of(mesh, rank));
    }
  }
}

// Compares a plan of some rows with the plan of all: each element of a drawn row is found at the
// same place of the rank's tensor and of the full one, and all others are counted as undrawn.
void check_drawn(const std::vector<int64_t>& shape, const Layout& layout, const at::Tensor& map,
                 const std::vector<int64_t>& drawn, const Mesh& mesh, int64_t rank) {
  const IndexPlan all = make_index_plan(shape, layout, view_of(map), {}, mesh, rank);
  const IndexPlan some = make_index_plan(shape, layout, view_of(map), {}, mesh, rank, drawn);
  REQUIRE(some.problem.empty());
  CHECK(some.local_shape == all.local_shape);
  CHECK(some.tokens == all.tokens);
  CHECK(some.replicas.ranks() == all.replicas.ranks());
  CHECK(some.count + some.undrawn == all.count);
  const std::vector<int64_t> offsets = planned(all);
  const at::Tensor numbers = at::arange(std::ssize(offsets), at::kLong).view(all.local_shape);
  const TensorView kept = kept_rows(view_of(numbers), some);
  int64_t found = 0;
  some.for_each_run([&](int64_t local, int64_t golden, int64_t length) {
    for (int64_t i = 0; i < length; ++i, ++found) {
      const int64_t place = some.local_offset(local + i);
      REQUIRE(kept.data<int64_t>()[local + i] == place);
      CHECK(some.global_index(golden + i) == unravel(offsets[static_cast<size_t>(place)], shape));
    }
  });
  CHECK(found == some.count);
  const int64_t of_row = all.count == 0 ? 1 : shape[1] * shape[2];
  const auto is_drawn = [&](int64_t offset) {
    return offset >= 0 && std::binary_search(drawn.begin(), drawn.end(), offset / of_row);
  };
  CHECK(found == std::count_if(offsets.begin(), offsets.end(), is_drawn));
}

TEST_CASE("a plan of drawn rows finds their elements alone, for every layout", "[plan]") {
  const Mesh mesh = Mesh::training({.dp = 2, .cp = 3, .tp = 4});
  const std::vector<Layout> layouts{Layout(),
                                    Layout({Cut::even(0, "tp")}),
                                    Layout({Cut::even(1, "cp")}),
                                    Layout({Cut::even(-2, "tp"), Cut::even(0, "dp")}),
                                    Layout({Cut::chunk(2, "tp")}),
                                    Layout({Cut::padded(0, "tp", 16)}),
                                    Layout({Cut::zigzag(1, "cp"), Cut::even(0, "tp")}),
                                    Layout({Cut::repeated(0, "tp", 2)}),
                                    Layout({Cut::even(0, "tp"), Cut::chunk(0, "dp")})};
  for (const Layout& layout : layouts) {
    CAPTURE(layout.describe());
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      check_drawn({12, 24, 5}, layout, {}, {1, 5, 6, 11}, mesh, rank);
      check_drawn({12, 24, 5}, layout, {}, {7}, mesh, rank);
    }
  }
}

TEST_CASE("rows of tokens are samples, wherever their tokens are packed", "[plan]") {
  const Mesh mesh = Mesh::training({.tp = 3});
  const at::Tensor map = at::tensor({9, 8, -1, 0, 1, -1}, at::kLong).view({1, 6});
  for (const Layout& layout :
       {Layout(), Layout({Cut::even(1, "tp")}), Layout({Cut::even(1, "tp"), Cut::even(2, "tp")})}) {
    for (int64_t rank = 0; rank < 3; ++rank) {
      check_drawn({3, 4, 6}, layout, map, {0}, mesh, rank);
      check_drawn({3, 4, 6}, layout, map, {1, 2}, mesh, rank);
    }
  }
  const IndexPlan none = make_index_plan({3, 4, 6}, Layout(), view_of(map), {}, mesh, 0, {1});
  CHECK(none.count == 0);
  CHECK_FALSE(none.only_padding);
}

TEST_CASE("whole inner dims become one run", "[plan]") {
  const Mesh mesh = Mesh::training({.tp = 2});
  CHECK(make_index_plan({4, 6, 5}, Layout(), {}, {}, mesh, 0).runs.size() == 1);
  const IndexPlan rows = make_index_plan({4, 6, 5}, Layout({Cut::even(0, "tp")}), {}, {}, mesh, 1);
  REQUIRE(rows.runs.size() == 1);
  CHECK(rows.runs[0].length == 60);
  CHECK(rows.runs[0].golden == 60);
  const IndexPlan columns =
      make_index_plan({4, 6, 5}, Layout({Cut::even(1, "tp")}), {}, {}, mesh, 1);
  CHECK(columns.rows.size() == 4);
  REQUIRE(columns.runs.size() == 1);
  CHECK(columns.runs[0].length == 15);
}

TEST_CASE("a token map says where rows belong, and the layout cuts what it maps", "[plan]") {
  const Mesh mesh = Mesh::training({.tp = 3});
  // Packed: one row of six tokens of a golden [3, 4, 6], two of them padding.
  const at::Tensor map = at::tensor({9, 8, -1, 0, 1, -1}, at::kLong).view({1, 6});
  const Layout layout({Cut::even(1, "tp"), Cut::even(2, "tp")});
  const int64_t tokens[3][2] = {{9, 8}, {-1, 0}, {1, -1}};
  for (int64_t rank = 0; rank < 3; ++rank) {
    // Both cuts are over tp, so a rank holds its columns of its positions.
    const IndexPlan plan = make_index_plan({3, 4, 6}, layout, view_of(map), {}, mesh, rank);
    REQUIRE(plan.problem.empty());
    CHECK(plan.local_shape == std::vector<int64_t>{1, 2, 2});
    std::vector<int64_t> expected;
    for (const int64_t token : tokens[rank]) {
      for (int64_t column = 2 * rank; column < 2 * rank + 2; ++column) {
        expected.push_back(token < 0 ? -1 : token * 6 + column);
      }
    }
    CHECK(planned(plan) == expected);
    CHECK_FALSE(plan.only_padding);
  }
}

TEST_CASE("a zigzag over tokens follows the map", "[plan]") {
  const Mesh mesh = Mesh::training({.cp = 2});
  const at::Tensor map = at::tensor({7, 6, 5, 4, 3, 2, 1, 0}, at::kLong).view({1, 8});
  const Layout layout({Cut::zigzag(1, "cp")});
  CHECK(planned(make_index_plan({2, 4}, layout, view_of(map), {}, mesh, 0)) ==
        std::vector<int64_t>{7, 6, 1, 0});
  CHECK(planned(make_index_plan({2, 4}, layout, view_of(map), {}, mesh, 1)) ==
        std::vector<int64_t>{5, 4, 3, 2});
}

TEST_CASE("ranks with other tokens have another token digest", "[plan]") {
  const Mesh mesh = Mesh::training({.dp = 2});
  const at::Tensor first = at::tensor({0, 1, -1}, at::kLong).view({1, 3});
  const at::Tensor second = at::tensor({3, 4, -1}, at::kLong).view({1, 3});
  const at::Tensor dummy = at::full({1, 3}, -1, at::kLong);
  const IndexPlan a = make_index_plan({2, 3}, Layout(), view_of(first), {}, mesh, 0);
  const IndexPlan b = make_index_plan({2, 3}, Layout(), view_of(second), {}, mesh, 1);
  CHECK(a.replicas == std::vector<int64_t>{0, 1});  // by the layout alone
  CHECK(a.tokens != b.tokens);
  CHECK(a.tokens == make_index_plan({2, 3}, Layout(), view_of(first), {}, mesh, 1).tokens);
  const IndexPlan only_padding = make_index_plan({2, 3}, Layout(), view_of(dummy), {}, mesh, 1);
  CHECK(only_padding.only_padding);
  CHECK(only_padding.count == 0);
  CHECK(make_index_plan({2, 3}, Layout(), {}, {}, mesh, 0).tokens == 0);
}

TEST_CASE("addends over an axis are no replicas", "[plan]") {
  const Mesh mesh = Mesh::training({.dp = 2, .tp = 3});
  CHECK(make_index_plan({4}, Layout(), {}, {"tp"}, mesh, 4).replicas == std::vector<int64_t>{1, 4});
  CHECK(make_index_plan({4}, Layout(), {}, {"dp"}, mesh, 4).replicas ==
        std::vector<int64_t>{3, 4, 5});
}

TEST_CASE("what does not fit is a problem with its numbers, not a crash", "[plan]") {
  const Mesh mesh = Mesh::training({.tp = 4});
  const auto problem = [&](const Layout& layout, const at::Tensor& map) {
    return make_index_plan({3, 6}, layout, view_of(map), {}, mesh, 0).problem;
  };
  CHECK_THAT(problem(Layout({Cut::even(1, "tp")}), {}), Catch::Contains("[3, 6]"));
  CHECK_FALSE(problem(Layout({Cut::even(5, "tp")}), {}).empty());
  CHECK_THAT(problem(Layout(), at::tensor({18}, at::kLong).view({1, 1})),
             Catch::Contains("token_map holds 18, the golden has 18 tokens"));
  CHECK_FALSE(problem(Layout(), at::tensor({0}, at::kLong)).empty());
}

TEST_CASE("coverage hashes add up exactly when every element is held once", "[plan]") {
  const Mesh mesh = Mesh::training({.dp = 2, .tp = 3});
  const auto sum_of = [&](const Layout& layout) {
    std::set<uint64_t> pieces;
    uint64_t all = 0;
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      const IndexPlan plan = make_index_plan({6, 9}, layout, {}, {}, mesh, rank);
      pieces.insert(plan.covered);
      all = plan.coverage_of_all;
    }
    uint64_t sum = 0;
    for (const uint64_t piece : pieces) sum += piece;
    return sum == all;
  };
  CHECK(sum_of(Layout()));
  CHECK(sum_of(Layout({Cut::even(0, "tp")})));
  CHECK(sum_of(Layout({Cut::even(0, "tp"), Cut::even(0, "dp")})));
  CHECK(sum_of(Layout({Cut::even(1, "tp"), Cut::even(0, "dp")})));
  CHECK(sum_of(Layout({Cut::padded(0, "tp", 9)})));
  CHECK(sum_of(Layout({Cut::repeated(1, "tp", 1)})));
  // The plan of rank 0 covers half of the rows.
  const IndexPlan half = make_index_plan({6, 9}, Layout({Cut::even(0, "dp")}), {}, {}, mesh, 0);
  CHECK(half.covered != half.coverage_of_all);
}

TEST_CASE("scalars and empty tensors have plans", "[plan]") {
  const Mesh mesh = Mesh::training({.tp = 2});
  const IndexPlan scalar = make_index_plan({}, Layout(), {}, {}, mesh, 1);
  CHECK(scalar.count == 1);
  CHECK(planned(scalar) == std::vector<int64_t>{0});
  const IndexPlan empty = make_index_plan({0, 3}, Layout(), {}, {}, mesh, 1);
  CHECK(empty.count == 0);
  CHECK(empty.problem.empty());
}

TEST_CASE("unravel gives the indices of an offset", "[plan]") {
  CHECK(unravel(0, {}).empty());
  CHECK(unravel(59, {3, 4, 5}) == std::vector<int64_t>{2, 3, 4});
  CHECK(unravel(20, {3, 4, 5}) == std::vector<int64_t>{1, 0, 0});
}
