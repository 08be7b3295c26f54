// Every kind of cut against its drawing, and properties that hold for all small layouts.
#include "mesh/layout.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "base/error.h"

using shardproof::Cut;
using shardproof::Error;
using shardproof::ErrorKind;
using shardproof::Layout;
using shardproof::Mesh;
using shardproof::round_up;

namespace {

using Indices = std::vector<int64_t>;

std::vector<Indices> all_indices(const Layout& layout, int64_t size, const Mesh& mesh) {
  std::vector<Indices> all;
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    all.push_back(layout.indices(0, size, mesh, rank));
  }
  return all;
}

// Exactly one replica group holds each index, replicas are equal, and groups partition the world.
void check_covers(const Layout& layout, int64_t size, const Mesh& mesh) {
  const auto all = all_indices(layout, size, mesh);
  std::map<int64_t, int> holders;
  std::multiset<int64_t> members;
  int64_t last_first = -1;
  for (const auto& group : layout.replica_groups(mesh)) {
    REQUIRE(group.front() > last_first);
    last_first = group.front();
    for (const int64_t index : all[group.front()]) {
      if (index >= 0) ++holders[index];
    }
    for (const int64_t rank : group) {
      REQUIRE(all[rank] == all[group.front()]);
      REQUIRE(layout.replicas_of(mesh, rank) == group);
      members.insert(rank);
    }
  }
  REQUIRE(static_cast<int64_t>(members.size()) == mesh.world_size());
  REQUIRE(*members.rbegin() == mesh.world_size() - 1);
  REQUIRE(std::set<int64_t>(members.begin(), members.end()).size() == members.size());
  REQUIRE(static_cast<int64_t>(holders.size()) == size);
  for (const auto& [index, count] : holders) {
    REQUIRE(index < size);
    REQUIRE(count == 1);
  }
}

std::vector<Mesh> small_meshes() {
  std::vector<Mesh> meshes;
  for (int64_t dp = 1; dp <= 4; ++dp)
    for (int64_t cp = 1; cp <= 3; ++cp)
      for (int64_t ulysses = 1; ulysses <= 2; ++ulysses)
        for (int64_t tp = 1; tp <= 4; ++tp)
          meshes.push_back(Mesh::training({.dp = dp, .cp = cp, .ulysses = ulysses, .tp = tp}));
  return meshes;
}

Error refusal(const Layout& layout, int64_t size, const Mesh& mesh) {
  try {
    all_indices(layout, size, mesh);
  } catch (const Error& error) {
    CHECK_FALSE(error.fix().empty());
    return error;
  }
  FAIL("accepted " << layout.describe() << " over " << size);
  throw;
}

}  // namespace

TEST_CASE("cuts of one dim keep what their picture shows", "[layout]") {
  struct Picture {
    Layout layout;
    Mesh mesh;
    int64_t size;
    std::vector<Indices> of_ranks;
  };
  const Mesh tp3({{"tp", 3}}), dp4({{"dp", 4}});
  const Mesh dp2_tp3({{"dp", 2}, {"tp", 3}});  // rank = dp * 3 + tp
  const Layout chunk({Cut::chunk(0, "dp")});   // as torch.chunk, also of fewer rows than ranks
  const Layout tp_first({Cut::even(0, "tp"), Cut::chunk(0, "dp")});  // the strided shard
  const Layout dp_first({Cut::chunk(0, "dp"), Cut::chunk(0, "tp")});
  const std::vector<Picture> pictures = {
      {Layout({Cut::even(0, "tp")}), tp3, 6, {{0, 1}, {2, 3}, {4, 5}}},
      {Layout({Cut::chunk(0, "tp")}), tp3, 7, {{0, 1, 2}, {3, 4, 5}, {6}}},
      {Layout({Cut::padded(0, "tp", 9)}), tp3, 7, {{0, 1, 2}, {3, 4, 5}, {6, -1, -1}}},
      {Layout({Cut::padded(0, "tp", 9)}), tp3, 2, {{0, 1, -1}, {-1, -1, -1}, {-1, -1, -1}}},
      {Layout({Cut::in_blocks(0, "tp", {6, 3})}), tp3, 9, {{0, 1, 6}, {2, 3, 7}, {4, 5, 8}}},
      {Layout({Cut::zigzag(0, "tp")}), tp3, 12, {{0, 1, 10, 11}, {2, 3, 8, 9}, {4, 5, 6, 7}}},
      {Layout({Cut::repeated(0, "tp", 3)}), tp3, 6, {{0, 1}, {2, 3}, {4, 5}}},
      {Layout({Cut::repeated(0, "tp", 1)}), tp3, 2, {{0, 1}, {0, 1}, {0, 1}}},
      {Layout({Cut::repeated(0, "dp", 2)}), dp4, 4, {{0, 1}, {0, 1}, {2, 3}, {2, 3}}},
      {chunk, dp4, 5, {{0, 1}, {2, 3}, {4}, {}}},
      {chunk, dp4, 3, {{0}, {1}, {2}, {}}},
      {chunk, dp4, 1, {{0}, {}, {}, {}}},
      {chunk, dp4, 0, {{}, {}, {}, {}}},
      {tp_first, dp2_tp3, 9, {{0, 1}, {3, 4}, {6, 7}, {2}, {5}, {8}}},
      {dp_first, dp2_tp3, 9, {{0, 1}, {2, 3}, {4}, {5, 6}, {7, 8}, {}}},
  };
  for (const Picture& one : pictures) {
    INFO(one.layout.describe() << " of " << one.size);
    CHECK(all_indices(one.layout, one.size, one.mesh) == one.of_ranks);
  }
}

TEST_CASE("on every small mesh one and more cuts cover each index once", "[layout]") {
  for (const Mesh& mesh : small_meshes()) {
    for (const std::string axis : {"dp", "cp", "ulysses", "tp"}) {
      const int64_t size = mesh.size(axis);
      for (int64_t n = 0; n <= 13; ++n) {
        check_covers(Layout({Cut::chunk(0, axis)}), n, mesh);
        check_covers(Layout({Cut::padded(0, axis, round_up(n, size))}), n, mesh);
        check_covers(Layout({Cut::padded(0, axis, round_up(n, size) + 2 * size)}), n, mesh);
        check_covers(Layout(), n, mesh);
      }
      for (int64_t n = 0; n <= 3; ++n) {
        check_covers(Layout({Cut::even(0, axis)}), n * size, mesh);
        check_covers(Layout({Cut::zigzag(0, axis)}), 2 * n * size, mesh);
        check_covers(Layout({Cut::in_blocks(0, axis, {n * size, size, 0})}), (n + 1) * size, mesh);
        for (int64_t parts = 1; parts <= size; ++parts) {
          if (size % parts == 0)
            check_covers(Layout({Cut::repeated(0, axis, parts)}), n * parts, mesh);
        }
      }
    }
    const int64_t tp = mesh.size("tp"), cp = mesh.size("cp");
    for (int64_t n = 0; n <= 11; ++n) {
      check_covers(Layout({Cut::even(0, "tp"), Cut::chunk(0, "dp")}), n * tp, mesh);
      check_covers(Layout({Cut::chunk(0, "dp"), Cut::chunk(0, "tp")}), n, mesh);
      check_covers(Layout({Cut::padded(0, "tp", round_up(n, tp)), Cut::chunk(0, "dp")}), n, mesh);
      check_covers(
          Layout({Cut::in_blocks(0, "tp", {tp, n * tp}), Cut::chunk(0, "dp"), Cut::chunk(0, "cp")}),
          (n + 1) * tp, mesh);
      check_covers(Layout({Cut::zigzag(0, "cp"), Cut::even(0, "tp")}), 2 * n * cp * tp, mesh);
      check_covers(Layout({Cut::repeated(0, "tp", 1), Cut::chunk(0, "dp")}), n, mesh);
    }
  }
}

TEST_CASE("local shapes cut each dim by its own cuts; negative dims count from the end",
          "[layout]") {
  const Mesh mesh({{"dp", 2}, {"cp", 3}, {"tp", 4}});
  const Layout layout({Cut::zigzag(1, "cp"), Cut::even(-1, "tp"), Cut::chunk(0, "dp")});
  CHECK(layout.local_shape({5, 12, 8}, mesh, 23) == Indices{2, 4, 2});
  CHECK(layout.local_shape({5, 12, 8}, mesh, 0) == Indices{3, 4, 2});
  CHECK(layout.local_shape({5, 12, 7, 8}, mesh, 0) == Indices{3, 4, 7, 2});
  CHECK(layout.resolved(3).cuts()[1].dim == 2);
  CHECK_THROWS_AS(layout.resolved(1), Error);
  CHECK_THROWS_AS(Layout({Cut::even(-3, "tp")}).local_shape({4, 4}, mesh, 0), Error);
  CHECK(Layout().local_shape({}, mesh, 5).empty());
  CHECK(Layout({Cut::chunk(0, "tp")}).local_shape({3, 5}, mesh, 3) == Indices{0, 5});
}

TEST_CASE("replica groups are the ranks that differ only on axes that are not cut", "[layout]") {
  const Mesh mesh({{"dp", 2}, {"cp", 2}, {"tp", 3}});
  using Groups = std::vector<Indices>;
  CHECK(Layout({Cut::even(0, "tp")}).replica_groups(mesh) ==
        Groups{{0, 3, 6, 9}, {1, 4, 7, 10}, {2, 5, 8, 11}});
  CHECK(Layout({Cut::even(0, "tp"), Cut::chunk(1, "dp")}).replicas_of(mesh, 7) == Indices{7, 10});
  CHECK(Layout().replica_groups(mesh).size() == 1);
  CHECK(Layout({Cut::repeated(0, "tp", 2)}).replica_groups(Mesh({{"dp", 2}, {"tp", 4}})) ==
        Groups{{0, 1, 4, 5}, {2, 3, 6, 7}});
}

TEST_CASE("a tensor that some ranks do not hold", "[layout]") {
  const Mesh mesh({{"pp", 3}, {"tp", 2}});
  const Layout tied({Cut::held_by("pp", {0, 2}), Cut::even(1, "tp")});
  CHECK(tied.local_shape({5, 4}, mesh, 1) == std::vector<int64_t>{5, 2});
  CHECK(tied.local_shape({5, 4}, mesh, 2) == std::vector<int64_t>{0, 2});
  CHECK(tied.replicas_of(mesh, 1) == Indices{1, 5});
  CHECK(tied.describe() == "H(0)pp:0|2 S(1)tp");
  check_covers(Layout({Cut::held_by("pp", {0, 2})}), 4, mesh);
  check_covers(Layout({Cut::held_by("pp", {1}), Cut::even(0, "tp")}), 4, mesh);
  for (const std::vector<int64_t>& wrong : {std::vector<int64_t>{}, {3}, {-1, 0}}) {
    const auto error = refusal(Layout({Cut::held_by("pp", wrong)}), 4, mesh);
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK_THAT(error.fact(), Catch::Contains("coordinates that pp=3 does not have"));
  }
}

TEST_CASE("a cut that does not fit is refused with its numbers", "[layout]") {
  struct Row {
    Cut cut;
    int64_t size;
    ErrorKind kind;
    std::vector<std::string> words = {};
  };
  constexpr auto kRefused = ErrorKind::kRefused, kBadInput = ErrorKind::kBadInput;
  const std::vector<Row> rows = {
      {Cut::even(0, "tp"), 8, kRefused, {"size 8 does not divide by tp=3"}},
      {Cut::zigzag(0, "cp"), 6, kRefused, {"2*cp=4 zigzag chunks", "pad the sequence to 8"}},
      {Cut::in_blocks(0, "tp", {6, 4}), 10, kRefused, {"a block of 4"}},
      {Cut::padded(0, "tp", 8), 8, kRefused, {"pad it to 9"}},
      {Cut::padded(0, "tp", 6), 8, kRefused, {"pad it to 9"}},
      {Cut::repeated(0, "tp", 2), 4, kRefused},
      {Cut::repeated(0, "tp", 3), 4, kRefused},
      {Cut::repeated(0, "tp", 0), 4, kBadInput},
      {Cut::in_blocks(0, "tp", {3, 3}), 9, kBadInput, {"sum to 6", "size 9"}},
      {Cut::in_blocks(0, "tp", {12, -3}), 9, kBadInput},
      {Cut::in_blocks(0, "tp", {INT64_MAX, INT64_MAX}), 9, kBadInput},
  };
  for (const Row& row : rows) {
    const Error error = refusal(Layout({row.cut}), row.size, Mesh({{"cp", 2}, {"tp", 3}}));
    CHECK(error.kind() == row.kind);
    for (const std::string& word : row.words) {
      CHECK_THAT(error.what(), Catch::Contains(word));
    }
  }
}

TEST_CASE("an axis of one rank cuts nothing, whatever the kind", "[layout]") {
  const Mesh mesh({{"tp", 2}});
  const Indices whole = {0, 1, 2, 3, 4};
  for (const Layout& layout :
       {Layout({Cut::even(0, "cp")}), Layout({Cut::chunk(0, "cp")}), Layout({Cut::zigzag(0, "cp")}),
        Layout({Cut::in_blocks(0, "cp", {2, 3})}), Layout({Cut::padded(0, "cp", 5)}),
        Layout({Cut::repeated(0, "cp", 1)})}) {
    CHECK(layout.indices(0, 5, mesh, 1) == whole);
    CHECK(layout.replicas_of(mesh, 1) == Indices{0, 1});
  }
}

TEST_CASE("layouts say what they are in short", "[layout]") {
  CHECK(Layout().describe() == "R");
  CHECK(Layout({Cut::even(0, "tp"), Cut::chunk(0, "dp")}).describe() == "S(0)tp S(0)dp");
  CHECK(Layout({Cut::zigzag(1, "cp")}).describe() == "Z(1)cp");
  CHECK(Layout({Cut::padded(0, "tp", 96)}).describe() == "S(0)tp:padded96");
  CHECK(Layout({Cut::repeated(0, "tp", 2)}).describe() == "S(0)tp:parts2");
  CHECK(Layout({Cut::in_blocks(0, "tp", {4, 4})}).describe() == "B(0)tp:4|4");
  CHECK(Layout({Cut::even(0, "tp")}) != Layout({Cut::chunk(0, "tp")}));
  CHECK_FALSE(Layout({Cut::even(0, "tp")}).cuts_dim(1));
}
