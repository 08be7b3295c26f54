// With d = q - k, a key is visible where lowest <= d <= highest, so the corners of two tiles
// decide.
#include "parallel/cp/visibility.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace shardproof {
namespace {

struct Distances {
  int64_t lowest, highest;  // of q - k
};

Distances visible_distances(const AttentionRule& rule) {
  constexpr int64_t kFar = std::numeric_limits<int64_t>::max();
  const int64_t reach = rule.window > 0 ? rule.window - 1 : kFar;
  return {.lowest = rule.causal ? 0 : -reach, .highest = reach};
}

}  // namespace

std::vector<TokenTile> token_tiles(const SequenceLayout& layout, int64_t cp_rank,
                                   int64_t tile_length) {
  std::vector<TokenTile> tiles;
  for (const SequenceChunk& chunk : layout.chunks(cp_rank)) {
    for (int64_t at = 0; at < chunk.real_length; at += tile_length) {
      tiles.push_back({.sequence = chunk.sequence,
                       .begin = chunk.begin + at,
                       .length = std::min(tile_length, chunk.real_length - at),
                       .local_begin = chunk.local_begin + at});
    }
  }
  return tiles;
}

Visibility visibility(const TokenTile& queries, const TokenTile& keys, const AttentionRule& rule) {
  if (queries.sequence != keys.sequence) return Visibility::kNone;
  const Distances visible = visible_distances(rule);
  const int64_t nearest = queries.begin - (keys.begin + keys.length - 1);
  const int64_t farthest = queries.begin + queries.length - 1 - keys.begin;
  if (farthest < visible.lowest || nearest > visible.highest) return Visibility::kNone;
  if (nearest >= visible.lowest && farthest <= visible.highest) return Visibility::kAll;
  return Visibility::kSome;
}

at::Tensor hidden_keys(const TokenTile& queries, const TokenTile& keys, const AttentionRule& rule,
                       at::Device device) {
  const auto positions = [&](const TokenTile& tile) {
    return at::arange(tile.begin, tile.begin + tile.length,
                      at::TensorOptions().dtype(at::kLong).device(device));
  };
  const at::Tensor distance = positions(queries).unsqueeze(1) - positions(keys).unsqueeze(0);
  const Distances visible = visible_distances(rule);
  return distance.lt(visible.lowest).logical_or(distance.gt(visible.highest));
}

}  // namespace shardproof
