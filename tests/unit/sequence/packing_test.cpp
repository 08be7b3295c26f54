// Bins, rows and positions against answers written by hand.
#include "sequence/packing.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "sequence/bins.h"

namespace shardproof::tests {
namespace {

using List = std::vector<int64_t>;

int64_t tokens_of(const List& bin, const List& lengths) {
  int64_t sum = 0;
  for (const int64_t index : bin) sum += lengths[static_cast<size_t>(index)];
  return sum;
}

TEST_CASE("bins as they are drawn", "[sequence][packing]") {
  const List lengths = {7, 5, 4, 3, 1};
  CHECK((pack_first_fit_decreasing(lengths, 10) == Bins{{0, 3}, {1, 2, 4}}));
  CHECK((pack_balanced(lengths, 2) == Bins{{0, 3}, {1, 2, 4}}));
  CHECK((dynamic_batches(lengths, 10, 1) == Bins{{4, 3}, {2, 1}, {0}}));
  CHECK((dynamic_batches(lengths, 16, 8) == Bins{{4, 3}, {2, 1}, {0}}));
}

TEST_CASE("a bin that is exactly full, one sequence, equal ones, lengths of 0",
          "[sequence][packing]") {
  CHECK((pack_first_fit_decreasing({4, 6, 10}, 10) == Bins{{2}, {0, 1}}));
  CHECK((pack_first_fit_decreasing({10}, 10) == Bins{{0}}));
  CHECK((pack_first_fit_decreasing({2, 2, 2}, 4) == Bins{{0, 1}, {2}}));
  CHECK((pack_first_fit_decreasing({0, 4, 0}, 4) == Bins{{0, 1, 2}}));
  CHECK((pack_balanced({3}, 2) == Bins{{0}, {}}));
}

TEST_CASE("bins are few, and balanced ones of like size", "[sequence][packing]") {
  List lengths;
  for (int64_t i = 0; i < 200; ++i) lengths.push_back((i * 37) % 61 + 1);
  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  for (const int64_t budget : {61, 64, 100, 1000, 100000}) {
    const int64_t fewest = (total + budget - 1) / budget;
    const Bins bins = pack_first_fit_decreasing(lengths, budget);
    CHECK(static_cast<int64_t>(bins.size()) <= fewest * 11 / 9 + 1);
  }
  for (const List& bin : pack_balanced(lengths, 8)) {
    CHECK(std::abs(tokens_of(bin, lengths) - total / 8) <= 61);
  }
}

TEST_CASE("what cannot be packed is refused with its numbers", "[sequence][packing]") {
  CHECK_THROWS_WITH(pack_first_fit_decreasing({}, 10), Catch::Contains("an empty batch"));
  CHECK_THROWS_WITH(pack_balanced({}, 2), Catch::Contains("an empty batch"));
  CHECK_THROWS_WITH(dynamic_batches({}, 10, 1), Catch::Contains("an empty batch"));
  CHECK_THROWS_WITH(make_pack({}, {3}), Catch::Contains("an empty pack"));
  CHECK_THROWS_WITH(pack_first_fit_decreasing({3, 11}, 10),
                    Catch::Contains("sequence 1 takes 11 tokens") && Catch::Contains("is 10"));
  CHECK_THROWS_WITH(dynamic_batches({3, 9}, 10, 8), Catch::Contains("takes 16 tokens"));
  CHECK_THROWS_WITH(pack_first_fit_decreasing({1}, 0), Catch::Contains("a budget of 0 tokens"));
  CHECK_THROWS_WITH(pack(at::zeros({1, 2}), make_pack({0}, {3})),
                    Catch::Contains("sample 0 has 3 tokens in a batch of 2 positions"));
}

TEST_CASE("a pack as it is drawn: places, positions, padding", "[sequence][packing]") {
  const Pack plan = make_pack({0, 1}, {3, 1}, 4, 8);
  CHECK(plan.cu_seqlens == List{0, 3, 4});
  CHECK(plan.cu_seqlens_padded == List{0, 4, 8});
  const at::Tensor ids = at::tensor({11, 12, 13, 99, 21, 99, 99, 99}, at::kLong).view({2, 4});
  CHECK(pack(ids, plan, -1)
            .equal(at::tensor({11, 12, 13, -1, 21, -1, -1, -1}, at::kLong).unsqueeze(0)));
  CHECK(packed_positions(plan).equal(at::tensor({0, 1, 2, 3, 0, 1, 2, 3}, at::kLong).unsqueeze(0)));
  CHECK(packed_sequence_ids(plan).equal(
      at::tensor({0, 0, 0, 0, 1, 1, 1, 1}, at::kLong).unsqueeze(0)));
  CHECK(
      packed_next(plan).equal(at::tensor({1, 2, -1, -1, -1, -1, -1, -1}, at::kLong).unsqueeze(0)));
  CHECK(plan.layout(2, ContextLayout::kZigzag).token_indices(0) == List{0, -1, 4, -1});
}

TEST_CASE("a longer row and a row multiple make the last place longer", "[sequence][packing]") {
  CHECK(make_pack({1, 0}, {3, 2}).cu_seqlens_padded == List{0, 2, 5});
  CHECK(make_pack({1, 0}, {3, 2}, 1, 4).cu_seqlens_padded == List{0, 2, 8});
  CHECK(make_pack({1, 0}, {3, 2}, 2, 4, 11).cu_seqlens_padded == List{0, 2, 12});
}

}  // namespace
}  // namespace shardproof::tests
