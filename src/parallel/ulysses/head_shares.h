// The number of heads per Ulysses rank, and how often kv heads are repeated for that.
//
//   H = 8, H_kv = 2, U = 4     query heads per rank   0 1 | 2 3 | 4 5 | 6 7
//                              kv head of each        0   | 0   | 1   | 1      repeated twice
#pragma once

#include <cstdint>

namespace shardproof {

struct HeadShares {
  int64_t query_heads = 0;  // per rank
  int64_t kv_heads = 0;     // per rank
  int64_t kv_repeats = 1;   // neighboring copies of each kv head before the exchange
};

// With kv_repeats = U / gcd(H_kv, U) every rank gets whole kv heads, which are those that its query
// heads use. This is possible for any H_kv if U divides H.
//
// Throws   Error(kRefused): U does not divide the query heads
HeadShares head_shares(int64_t query_heads, int64_t kv_heads, int64_t ulysses_size);

}  // namespace shardproof
