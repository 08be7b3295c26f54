// The tokens of one rank of context parallelism, which holds a chunk of each row or of each packed
// sequence, or in zigzag order two: the first and the last, the second and the last but one, ..
#include <fmt/ranges.h>

#include <set>

#include "sim/uses/logprobs/best_place.h"
#include "sim/uses/logprobs/causes.h"

namespace shardproof::sim::logprobs {
namespace {

// How rows, or packed sequences as if they were padded to equal chunks, are cut over ranks.
struct ContextCut {
  int64_t ranks;
  bool zigzag, in_segments;
  // A rank that holds positions 16 to 31 scores tokens 16 to 31, or 17 to 32: the logprob of a
  // token is computed at the position before it.
  int64_t shift;

  int64_t chunks() const { return zigzag ? 2 * ranks : ranks; }
  int64_t size(int64_t length) const { return (length + chunks() - 1) / chunks(); }
  // The rank that scores the token at a position of a row or sequence of this length; -1: none.
  int64_t rank_of(int64_t position, int64_t length) const {
    if (position < shift) return -1;
    const int64_t chunk = (position - shift) / size(length);
    return zigzag ? std::min(chunk, chunks() - 1 - chunk) : chunk;
  }

  // "positions 32 to 63 differ, chunk 1 of 2 of each row"
  std::string text(int64_t rank, int64_t length) const {
    if (!zigzag && !in_segments) {
      const int64_t begin = rank * size(length) + shift;
      return fmt::format("positions {} to {} differ, {}chunk {} of {} of each row", begin,
                         std::min(begin + size(length), length) - 1,
                         shift == 1 ? "which are scored from " : "", rank, chunks());
    }
    const char* tokens = shift == 1 ? "tokens that are scored from" : "the positions of";
    const char* unit = in_segments ? "segment" : "row";
    if (!zigzag) {
      return fmt::format("{} chunk {} of {} of each {} differ", tokens, rank, chunks(), unit);
    }
    return fmt::format(
        "{} chunks {} and {} of {} of each {} differ, which rank {} of {} holds in zigzag order",
        tokens, rank, chunks() - 1 - rank, chunks(), unit, rank, ranks);
  }
};

std::vector<ContextCut> context_cuts(const Pair& pair) {
  std::vector<ContextCut> cuts;
  for (const bool in_segments : {false, true}) {
    if (in_segments && !pair.has_segments) continue;
    for (const bool zigzag : {false, true}) {
      for (const int64_t ranks : {2, 3, 4, 6, 8, 16}) {
        const int64_t chunks = zigzag ? 2 * ranks : ranks;
        if (chunks >= pair.length || (!in_segments && pair.length % chunks != 0)) continue;
        for (const int64_t shift : {0, 1}) cuts.push_back({ranks, zigzag, in_segments, shift});
      }
    }
  }
  return cuts;
}

// The lengths of the sequences that the tokens are of, those that do not count included.
std::vector<int64_t> sequence_lengths(const Pair& pair) {
  std::vector<int64_t> lengths(pair.segment.size());
  for (size_t begin = 0, end = 0; begin < lengths.size(); begin = end) {
    const size_t row_end = (begin / pair.length + 1) * pair.length;
    while (end < row_end && pair.segment[end] == pair.segment[begin]) ++end;
    std::fill(lengths.begin() + begin, lengths.begin() + end, end - begin);
  }
  std::vector<int64_t> of_tokens;
  for (const Token& token : pair.tokens) {
    of_tokens.push_back(lengths[pair.at(token.row, token.position)]);
  }
  return of_tokens;
}

}  // namespace

std::optional<Claim> propose_context_shard(const Comparison& comparison) {
  const Pair& pair = comparison.pair;
  const std::vector<ContextCut> cuts = context_cuts(pair);
  const std::vector<int64_t> lengths = sequence_lengths(pair);
  const auto rank_of = [&](const ContextCut& cut, size_t i) {
    const Token& token = pair.tokens[i];
    return cut.in_segments ? cut.rank_of(token.in_segment, lengths[i])
                           : cut.rank_of(token.position, pair.length);
  };
  const ContextCut* best = nullptr;
  int64_t best_rank = 0, tried = 0;
  double most = 0;
  for (const ContextCut& cut : cuts) {
    std::vector<double> sums(cut.ranks), counts(cut.ranks);
    double sum = 0;
    for (size_t i = 0; i < pair.tokens.size(); ++i) {
      const double size = comparison.size_of(comparison.differences[i], i);
      const int64_t rank = rank_of(cut, i);
      sum += size;
      if (rank < 0) continue;
      sums[rank] += size;
      counts[rank] += 1;
    }
    for (int64_t rank = 0; rank < cut.ranks; ++rank) {
      Contrast sides;
      sides.add(true, sums[rank], counts[rank]);
      sides.add(false, sum - sums[rank], static_cast<double>(pair.tokens.size()) - counts[rank]);
      ++tried;
      const double here = sides.nats(comparison.floor);
      if (here <= most) continue;
      most = here;
      best = &cut;
      best_rank = rank;
    }
  }
  if (best == nullptr) return std::nullopt;
  std::vector<char> inside;
  std::set<std::pair<int64_t, int64_t>> units;
  for (size_t i = 0; i < pair.tokens.size(); ++i) {
    inside.push_back(rank_of(*best, i) == best_rank);
    units.emplace(pair.tokens[i].row, best->in_segments ? pair.tokens[i].segment : 0);
  }
  std::optional<Claim> claim = judge_place(
      comparison, inside,
      {.cause = "context_shard",
       .text = {},
       .likely = "one rank of context parallelism computes something else, or its neighbors' keys "
                 "and values do not reach it",
       .description = std::log(tried),
       .limit = static_cast<double>(units.size()) * std::log(pair.length)});
  if (!claim) return std::nullopt;
  // All ranks that hold the same tokens: the others of theirs may not count.
  const size_t first = std::ranges::find(inside, 1) - inside.begin();
  std::vector<std::string> texts;
  for (const ContextCut& cut : cuts) {
    const int64_t rank = rank_of(cut, first);
    bool is_same = rank >= 0;
    for (size_t i = 0; is_same && i < inside.size(); ++i) {
      is_same = (rank_of(cut, i) == rank) == (inside[i] != 0);
    }
    if (is_same) texts.push_back(cut.text(rank, pair.length));
  }
  claim->text = fmt::format("only {}{}", fmt::join(texts, ", or "), claim->text);
  return claim;
}

}  // namespace shardproof::sim::logprobs
