#include "parallel/ulysses/head_shares.h"

#include <fmt/format.h>

#include <numeric>

#include "base/error.h"

namespace shardproof {

HeadShares head_shares(int64_t query_heads, int64_t kv_heads, int64_t ulysses_size) {
  SHARDPROOF_ASSERT(kv_heads > 0 && query_heads % kv_heads == 0,
                    "query heads must share kv heads evenly");
  if (query_heads % ulysses_size != 0) {
    throw_refused(
        fmt::format("{} query heads do not divide by ulysses={}", query_heads, ulysses_size),
        fmt::format("choose a Ulysses size that divides {}", query_heads));
  }
  const int64_t repeats = ulysses_size / std::gcd(kv_heads, ulysses_size);
  return {.query_heads = query_heads / ulysses_size,
          .kv_heads = kv_heads * repeats / ulysses_size,
          .kv_repeats = repeats};
}

}  // namespace shardproof
