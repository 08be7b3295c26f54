// How Ulysses deals heads to its ranks.
#include "parallel/ulysses/head_shares.h"

#include <catch2/catch.hpp>

namespace shardproof::tests {
namespace {

TEST_CASE("kv heads are repeated no more than they must be, and lie where they are used",
          "[US-3]") {
  CHECK(head_shares(8, 2, 4).kv_repeats == 2);
  CHECK(head_shares(12, 4, 2).kv_repeats == 1);
  CHECK(head_shares(12, 3, 2).kv_repeats == 2);
  for (const int64_t size : {1, 2, 3, 4, 6}) {
    for (const int64_t kv_heads : {1, 2, 3, 4, 6, 12, 24}) {
      const HeadShares shares = head_shares(24, kv_heads, size);
      const int64_t group = 24 / kv_heads, local_group = shares.query_heads / shares.kv_heads;
      for (int64_t h = 0; h < 24; ++h) {
        const int64_t rank = h / shares.query_heads;
        const int64_t copy = rank * shares.kv_heads + (h % shares.query_heads) / local_group;
        CHECK(copy / shares.kv_repeats == h / group);
      }
    }
  }
}

TEST_CASE("query heads that do not divide are refused with the numbers", "[US-3]") {
  CHECK_THROWS_WITH(head_shares(6, 2, 4),
                    Catch::Contains("6 query heads do not divide by ulysses=4"));
}

}  // namespace
}  // namespace shardproof::tests
