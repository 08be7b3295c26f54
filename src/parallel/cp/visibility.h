// Which keys a query sees, by their positions in the sequence.
//
//   causal            k <= q
//   window W > 0      q - W < k, and k < q + W where it is not causal
//   always            in the same sequence, and both are tokens: padding neither sees nor is seen
//
// Tokens are handled in tiles: neighbors of one sequence that are also neighbors on their rank. Two
// tiles are not multiplied when no query of one sees a key of the other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sequence/sequence_layout.h"

namespace shardproof {

struct AttentionRule {
  bool causal = true;
  int64_t window = 0;  // 0: none. A query sees at most the last `window` keys, including its own
};

struct TokenTile {
  int64_t sequence = 0;
  int64_t begin = 0;        // position within the sequence
  int64_t length = 0;       // number of tokens without padding; at least 1
  int64_t local_begin = 0;  // among the rank's local positions
};

// The tokens of one rank in tiles of at most `tile_length`, in local order.
std::vector<TokenTile> token_tiles(const SequenceLayout& layout, int64_t cp_rank,
                                   int64_t tile_length);

enum class Visibility { kNone, kSome, kAll };
Visibility visibility(const TokenTile& queries, const TokenTile& keys, const AttentionRule& rule);

// [queries.length, keys.length] bool: true where the query does not see the key.
at::Tensor hidden_keys(const TokenTile& queries, const TokenTile& keys, const AttentionRule& rule,
                       at::Device device);

}  // namespace shardproof
