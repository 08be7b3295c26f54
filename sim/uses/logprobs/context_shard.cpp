// The tokens of one rank of context parallelism, which holds a chunk of each row or of each packed
// sequence, or in zigzag order two: the first and the last, the second and the last but one, ..
#include <fmt/ranges.h>

#include "sim/uses/logprobs/best_place.h"
#include "sim/uses/logprobs/causes.h"

namespace shardproof::sim::logprobs {
namespace {

struct ContextShard {
  int64_t ranks, rank;
  bool zigzag, in_segments;
  // A rank that holds positions 16 to 31 scores tokens 16 to 31, or 17 to 32: the logprob of a
  // token is computed at the position before it.
  int64_t shift;

  int64_t chunks() const { return zigzag ? 2 * ranks : ranks; }
  int64_t size(int64_t length) const { return (length + chunks() - 1) / chunks(); }
  bool holds(int64_t position, int64_t length) const {
    if (position < shift) return false;
    const int64_t chunk = (position - shift) / size(length);
    return (zigzag ? std::min(chunk, chunks() - 1 - chunk) : chunk) == rank;
  }

  // "positions 32 to 63 differ, chunk 1 of 2 of each row"
  std::string text(int64_t length) const {
    const char* unit = in_segments ? "segment" : "row";
    if (!zigzag && !in_segments) {
      const int64_t begin = rank * size(length) + shift;
      return fmt::format("positions {} to {} differ, {}chunk {} of {} of each row", begin,
                         std::min(begin + size(length), length) - 1,
                         shift == 1 ? "which are scored from " : "", rank, chunks());
    }
    const char* tokens = shift == 1 ? "tokens that are scored from" : "the positions of";
    if (!zigzag) {
      return fmt::format("{} chunk {} of {} of each {} differ", tokens, rank, chunks(), unit);
    }
    return fmt::format(
        "{} chunks {} and {} of {} of each {} differ, which rank {} of {} holds in zigzag order",
        tokens, rank, chunks() - 1 - rank, chunks(), unit, rank, ranks);
  }
};

std::vector<ContextShard> context_shards(const Pair& pair) {
  std::vector<ContextShard> shards;
  for (const bool in_segments : {false, true}) {
    if (in_segments && !pair.has_segments) continue;
    for (const bool zigzag : {false, true}) {
      for (const int64_t ranks : {2, 3, 4, 6, 8, 16}) {
        const int64_t chunks = zigzag ? 2 * ranks : ranks;
        if (chunks >= pair.length || (!in_segments && pair.length % chunks != 0)) continue;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          for (const int64_t shift : {0, 1}) {
            shards.push_back({ranks, rank, zigzag, in_segments, shift});
          }
        }
      }
    }
  }
  return shards;
}

}  // namespace

std::optional<Claim> propose_context_shard(const Comparison& comparison) {
  const Pair& pair = comparison.pair;
  // By row and segment; a sequence is cut as if it were padded to equal chunks.
  std::map<std::pair<int64_t, int64_t>, int64_t> lengths;
  for (const Token& token : pair.tokens) {
    int64_t& length = lengths[{token.row, token.segment}];
    length = std::max(length, token.in_segment + 1);
  }
  const auto tokens_of = [&](const ContextShard& shard) {
    return tokens_where(comparison, [&](const Token& token) {
      return shard.in_segments
                 ? shard.holds(token.in_segment, lengths.at({token.row, token.segment}))
                 : shard.holds(token.position, pair.length);
    });
  };
  const std::vector<ContextShard> shards = context_shards(pair);
  const ContextShard* chosen = nullptr;
  BestPlace best(comparison);
  for (const ContextShard& shard : shards) {
    best.offer(tokens_of(shard), [&] {
      chosen = &shard;
      return Claim{.cause = "context_shard",
                   .text = {},
                   .likely =
                       "one rank of context parallelism computes something else, or its "
                       "neighbors' keys and values do not reach it"};
    });
  }
  if (!best.found()) return std::nullopt;
  const size_t units = chosen->in_segments ? lengths.size() : pair.rows;
  std::optional<Claim> claim = best.judge(static_cast<double>(units) * std::log(pair.length));
  if (!claim) return std::nullopt;
  std::vector<std::string> texts;  // of all that hold the same tokens: others may not count
  for (const ContextShard& shard : shards) {
    if (tokens_of(shard) == best.inside()) texts.push_back(shard.text(pair.length));
  }
  claim->text = fmt::format("only {}{}", fmt::join(texts, ", or "), claim->text);
  return claim;
}

}  // namespace shardproof::sim::logprobs
