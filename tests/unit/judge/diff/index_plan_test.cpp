#include "sim/judge/diff/index_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/unit/judge/judged_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;

namespace {

// Each element that a rank holds of the drawn rows, and no other, is compared, with its own of the
// golden. `full` has 1 + the golden's offset in each element, and 0 in padding.
void check_plans(const at::Tensor& full, const std::vector<int64_t>& shape, const Layout& layout,
                 const at::Tensor& map, const Mesh& mesh, const std::vector<int64_t>& drawn) {
  CAPTURE(layout.describe(), drawn);
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const at::Tensor local = cut(full, layout, mesh, rank).contiguous();
    const IndexPlan plan = make_index_plan(shape, layout, view_of(map), {}, mesh, rank, drawn);
    REQUIRE(plan.problem.empty());
    CHECK(plan.local_shape == local.sizes().vec());
    CHECK(plan.replicas == layout.resolved(std::ssize(shape)).replicas_of(mesh, rank));
    const int64_t* values = local.const_data_ptr<int64_t>();
    std::vector<int64_t> due, found;
    int64_t held = 0;
    for (const int64_t value : std::vector<int64_t>(values, values + local.numel())) {
      held += value > 0 ? 1 : 0;
      const bool is_drawn =
          value > 0 && (drawn.empty() || std::binary_search(drawn.begin(), drawn.end(),
                                                            unravel(value - 1, shape)[0]));
      if (is_drawn) due.push_back(value);
    }
    const TensorView kept = kept_rows(view_of(local), plan);
    plan.for_each_run([&](int64_t first, int64_t golden, int64_t length) {
      for (int64_t i = 0; i < length; ++i) {
        found.push_back(kept.data<int64_t>()[first + i]);
        REQUIRE(values[plan.local_offset(first + i)] == found.back());
        CHECK(plan.global_index(golden + i) == unravel(found.back() - 1, shape));
      }
    });
    CHECK(found == due);
    CHECK(plan.count == std::ssize(due));
    CHECK(plan.undrawn == held - plan.count);
  }
}

const std::vector<std::vector<int64_t>> kDrawn = {{}, {1, 5, 6, 11}, {7}};

}  // namespace

TEST_CASE("a plan compares each local element with its own, for every layout and rank", "[plan]") {
  const at::Tensor full = at::arange(1, 12 * 24 * 5 + 1, at::kLong).view({12, 24, 5});
  for (const Layout& layout :
       {Layout(), Layout({Cut::even(0, "tp")}), Layout({Cut::even(-2, "tp"), Cut::even(0, "dp")}),
        Layout({Cut::chunk(2, "tp")}),  // uneven: 2, 2, 1, 0
        Layout({Cut::padded(0, "tp", 16)}), Layout({Cut::padded(2, "cp", 6)}),
        Layout({Cut::in_blocks(1, "tp", {4, 12, 8})}),
        Layout({Cut::zigzag(1, "cp"), Cut::even(0, "tp")}), Layout({Cut::repeated(0, "tp", 2)}),
        Layout({Cut::even(0, "tp"), Cut::chunk(0, "dp")}),
        Layout({Cut::chunk(2, "tp"), Cut::zigzag(1, "cp"), Cut::even(0, "dp")})}) {
    for (const std::vector<int64_t>& drawn : kDrawn) {
      check_plans(full, {12, 24, 5}, layout, {}, Mesh::training({.dp = 2, .cp = 3, .tp = 4}),
                  drawn);
    }
  }
}

TEST_CASE("tokens are compared wherever they are packed, and drawn by their samples", "[plan]") {
  const at::Tensor map = at::tensor({9, 8, -1, 0, 1, -1}, at::kLong).view({1, 6});
  const at::Tensor golden = at::arange(1, 3 * 4 * 6 + 1, at::kLong).view({12, 6});
  const at::Tensor packed = (golden.index({map.clamp_min(0)}) * map.ge(0).unsqueeze(2));
  for (const Layout& layout :
       {Layout(), Layout({Cut::even(1, "tp")}), Layout({Cut::zigzag(1, "tp")}),
        Layout({Cut::even(1, "tp"), Cut::even(2, "tp")})}) {
    for (const std::vector<int64_t>& drawn : std::vector<std::vector<int64_t>>{{}, {0}, {1, 2}}) {
      check_plans(packed, {3, 4, 6}, layout, map, Mesh::training({.tp = 3}), drawn);
    }
  }
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

TEST_CASE("addends over an axis are no replicas, those over the others are", "[plan]") {
  const Mesh mesh = Mesh::training({.dp = 2, .tp = 3});
  CHECK(make_index_plan({4}, Layout(), {}, {"tp"}, mesh, 4).replicas == std::vector<int64_t>{1, 4});
  CHECK(make_index_plan({4}, Layout(), {}, {"dp"}, mesh, 4).replicas ==
        std::vector<int64_t>{3, 4, 5});
}

TEST_CASE("a sample that was not drawn is no padding", "[plan]") {
  const at::Tensor map = at::tensor({9, 8, -1, 0, 1, -1}, at::kLong).view({1, 6});
  const IndexPlan none =
      make_index_plan({3, 4, 6}, Layout(), view_of(map), {}, Mesh::training({.tp = 3}), 0, {1});
  CHECK(none.count == 0);
  CHECK_FALSE(none.only_padding);
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

TEST_CASE("a part of the rows does not cover all", "[plan]") {
  const IndexPlan half = make_index_plan({6, 9}, Layout({Cut::even(0, "dp")}), {}, {},
                                         Mesh::training({.dp = 2, .tp = 3}), 0);
  CHECK(half.covered != half.coverage_of_all);
}

TEST_CASE("empty tensors have plans", "[plan]") {
  const IndexPlan empty = make_index_plan({0, 3}, Layout(), {}, {}, Mesh::training({.tp = 2}), 1);
  CHECK(empty.count == 0);
  CHECK(empty.problem.empty());
}
