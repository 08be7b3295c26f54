// Sequence layouts over a context-parallel axis, against their drawing and against Layout.
#include "sequence/sequence_layout.h"

#include <catch2/catch.hpp>
#include <limits>

#include "base/error.h"
#include "mesh/layout.h"
#include "sequence/cu_seqlens.h"

namespace shardproof::tests {
namespace {

using List = std::vector<int64_t>;

SequenceLayout drawn(ContextLayout kind) {
  return SequenceLayout::packed({0, 3, 7}, {0, 4, 8}, 2, kind);
}

TEST_CASE("the layouts are as they are drawn", "[sequence][LP-6]") {
  const auto whole = [](ContextLayout kind, int64_t rank) {
    return SequenceLayout::whole(8, 2, kind).token_indices(rank);
  };
  CHECK(whole(ContextLayout::kZigzag, 0) == List{0, 1, 6, 7});
  CHECK(whole(ContextLayout::kZigzag, 1) == List{2, 3, 4, 5});
  CHECK(whole(ContextLayout::kContiguous, 0) == List{0, 1, 2, 3});
  CHECK(drawn(ContextLayout::kZigzag).token_indices(0) == List{0, -1, 4, 7});
  CHECK(drawn(ContextLayout::kZigzag).indices(0) == List{0, 3, 4, 7});
  CHECK(drawn(ContextLayout::kZigzag).token_indices(1) == List{1, 2, 5, 6});
  CHECK(drawn(ContextLayout::kContiguous).token_indices(0) == List{0, 1, 4, 5});
  CHECK(drawn(ContextLayout::kContiguous).token_indices(1) == List{2, -1, 6, 7});
  CHECK(drawn(ContextLayout::kRow).token_indices(0) == List{0, 1, 2, -1});
  CHECK(drawn(ContextLayout::kRow).token_indices(1) == List{4, 5, 6, 7});
}

TEST_CASE("chunks begin anew with each sequence and say which is padding", "[sequence][LP-6]") {
  const SequenceLayout layout = drawn(ContextLayout::kZigzag);
  const std::vector<SequenceChunk> chunks = {
      {.sequence = 0, .begin = 0, .length = 1, .real_length = 1, .local_begin = 0},
      {.sequence = 0, .begin = 3, .length = 1, .real_length = 0, .local_begin = 1},
      {.sequence = 1, .begin = 0, .length = 1, .real_length = 1, .local_begin = 2},
      {.sequence = 1, .begin = 3, .length = 1, .real_length = 1, .local_begin = 3}};
  CHECK((layout.chunks(0) == chunks));
}

TEST_CASE("every position is held once, by the rank that Layout names", "[sequence][LP-6]") {
  for (const int64_t cp : {1, 2, 3, 4, 5}) {
    const Mesh mesh = Mesh::training({.cp = cp});
    const List lengths = {2 * cp, 0, 6 * cp, 4 * cp}, cu = cu_seqlens_of(lengths);
    const Layout zigzag({Cut::zigzag(0, "cp")}), even({Cut::even(0, "cp")});
    const auto packed = SequenceLayout::packed(cu, cu, cp, ContextLayout::kZigzag);
    const auto whole = SequenceLayout::whole(12 * cp, cp, ContextLayout::kZigzag);
    const auto row = SequenceLayout::packed(cu, cu, cp, ContextLayout::kRow);
    for (int64_t rank = 0; rank < cp; ++rank) {
      List of_packed;
      for (size_t i = 0; i < lengths.size(); ++i) {
        for (const int64_t index : zigzag.indices(0, lengths[i], mesh, rank)) {
          of_packed.push_back(cu[i] + index);
        }
      }
      CHECK(packed.indices(rank) == of_packed);
      CHECK(whole.indices(rank) == zigzag.indices(0, 12 * cp, mesh, rank));
      CHECK(row.indices(rank) == even.indices(0, 12 * cp, mesh, rank));
    }
    for (const SequenceLayout* layout : {&packed, &whole, &row}) {
      // A list of 12 * cp positions with an inverse has each once.
      const List order = layout->order(), inverse = layout->inverse_order();
      REQUIRE(order.size() == static_cast<size_t>(12 * cp));
      for (size_t i = 0; i < order.size(); ++i) {
        CHECK(order.at(static_cast<size_t>(inverse.at(i))) == static_cast<int64_t>(i));
      }
    }
  }
}

TEST_CASE("a sequence shorter than 2*cp leaves chunks of padding alone", "[sequence][LP-6]") {
  const SequenceLayout layout = SequenceLayout::whole(3, 4, ContextLayout::kZigzag);
  CHECK(layout.num_positions() == 8);
  CHECK(layout.local_positions() == 2);
  CHECK(layout.token_indices(0) == List{0, -1});
  CHECK(layout.token_indices(2) == List{2, -1});
  CHECK(layout.token_indices(3) == List{-1, -1});
  CHECK(layout.chunks(3)[1].real_length == 0);
}

TEST_CASE("a padded length of one's own, an empty sequence, one rank", "[sequence][LP-6]") {
  CHECK(SequenceLayout::whole(5, 2, ContextLayout::kZigzag, 12).token_indices(1) ==
        List{3, 4, -1, -1, -1, -1});
  CHECK(SequenceLayout::whole(0, 3, ContextLayout::kZigzag).num_positions() == 0);
  CHECK(SequenceLayout::whole(5, 1, ContextLayout::kZigzag).token_indices(0) ==
        List{0, 1, 2, 3, 4});
}

TEST_CASE("an explicit order, with padding behind the tokens", "[sequence][LP-4]") {
  const SequenceLayout layout = SequenceLayout::from_seq_index({5, 0, 1, 4, 3, 2}, 2, 5);
  CHECK(layout.indices(0) == List{5, 0, 1});
  CHECK(layout.token_indices(0) == List{-1, 0, 1});
  CHECK(layout.token_indices(1) == List{4, 3, 2});
  CHECK(layout.chunks(0).size() == 2);
  CHECK(layout.inverse_order() == List{1, 2, 5, 4, 3, 0});
}

TEST_CASE("what cannot be cut is refused with the length that could", "[sequence][LP-6]") {
  CHECK_THROWS_WITH(SequenceLayout::whole(6, 2, ContextLayout::kZigzag, 6),
                    Catch::Contains("seq_len=6 does not split into 2*cp=4 zigzag chunks") &&
                        Catch::Contains("pad it to 8"));
  CHECK_THROWS_WITH(SequenceLayout::packed({0, 4, 9}, {0, 4, 10}, 3, ContextLayout::kContiguous),
                    Catch::Contains("seq_len=4 does not split into cp=3 contiguous parts"));
  CHECK_THROWS_WITH(SequenceLayout::packed({0, 4, 9}, {0, 4, 9}, 2, ContextLayout::kRow),
                    Catch::Contains("seq_len=9"));
  CHECK_THROWS_WITH(SequenceLayout::whole(6, 2, ContextLayout::kZigzag, 4),
                    Catch::Contains("6 tokens and a padded length of 4"));
  CHECK_THROWS_WITH(SequenceLayout::whole(6, 0, ContextLayout::kZigzag),
                    Catch::Contains("axis of 0 ranks"));
  CHECK_THROWS_WITH(SequenceLayout::packed({0, 4}, {0, 4, 8}, 2, ContextLayout::kZigzag),
                    Catch::Contains("2 entries"));
  CHECK_THROWS_WITH(SequenceLayout::packed({}, {}, 2, ContextLayout::kZigzag),
                    Catch::Contains("begins with nothing"));
}

TEST_CASE("boundaries of lengths, rounded up", "[sequence]") {
  CHECK(cu_seqlens_of({3, 1, 0}) == List{0, 3, 4, 4});
  CHECK(cu_seqlens_of({3, 1, 0}, 4) == List{0, 4, 8, 8});
  CHECK(cu_seqlens_of({}) == List{0});
  CHECK_THROWS_WITH(cu_seqlens_of({3, -1}), Catch::Contains("sequence 1 has a length of -1"));
  CHECK_THROWS_WITH(cu_seqlens_of({std::numeric_limits<int64_t>::max(), 1}),
                    Catch::Contains("64 bits"));
}

}  // namespace
}  // namespace shardproof::tests
