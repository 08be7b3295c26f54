// Causes that name the wrong tokens by their positions in rows and segments, and predict no values.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "sim/uses/logprobs/best_place.h"
#include "sim/uses/logprobs/causes.h"
#include "sim/uses/logprobs/claim.h"

namespace shardproof::sim::logprobs {
namespace {

// The rows that reach a position, and which of them are wrong from it on.
struct LateRows {
  std::set<int64_t> wrong;
  size_t reaching = 0;
  size_t seen = 0;  // wrong ones with a wrong token; others have no token that can show it

  std::string text(int64_t rows) const {
    constexpr size_t kListed = 8;
    if (wrong.size() == reaching && seen == reaching) {
      return static_cast<int64_t>(reaching) == rows
                 ? "in every row"
                 : fmt::format("in every one of the {} rows that reach it", reaching);
    }
    if (wrong.size() == reaching) return fmt::format("in {} of {} rows", seen, reaching);
    const bool all = wrong.size() <= kListed;
    const std::vector<int64_t> listed(wrong.begin(),
                                      std::next(wrong.begin(), all ? wrong.size() : kListed));
    return fmt::format("in {} of {} rows: {}{}", wrong.size(), reaching, fmt::join(listed, ", "),
                       all ? "" : ", ...");
  }
};

LateRows find_late_rows(const Comparison& comparison, int64_t begin) {
  const auto late =
      tokens_where(comparison, [&](const Token& token) { return token.position >= begin; });
  const PlaceCounts counts = count_place(comparison, late);
  struct Row {
    double wrong = 0, tokens = 0;
  };
  std::map<int64_t, Row> rows;
  Row all;
  for (size_t i = 0; i < late.size(); ++i) {
    if (late[i] == 0) continue;
    Row& row = rows[comparison.pair.tokens[i].row];
    for (Row* one : {&row, &all}) {
      one->wrong += counts.wrong[i];
      one->tokens += can_show(comparison, counts, i) ? 1 : 0;
    }
  }
  const auto is_wrong = [&](const Row& row) {
    return row.tokens > 0 && row.wrong / row.tokens >= all.wrong / all.tokens / 2;
  };
  Row usual;  // of the wrong rows
  for (const auto& [number, row] : rows) {
    if (!is_wrong(row)) continue;
    usual.wrong += row.wrong;
    usual.tokens += row.tokens;
  }
  LateRows found{.wrong = {}, .reaching = rows.size()};
  const double expected = std::clamp(usual.wrong / std::max(usual.tokens, 1.0), 0.01, 0.99);
  for (const auto& [number, row] : rows) {
    // A row of few tokens may be wrong without showing it.
    const bool right = !is_wrong(row) && is_unlike(row.wrong, row.tokens, expected, rows.size());
    if (right) continue;
    found.wrong.insert(number);
    found.seen += row.wrong > 0 ? 1 : 0;
  }
  return found;
}

// What the place gains among the tokens of these rows alone.
double nats_within(const Comparison& comparison, const std::set<int64_t>& rows,
                   const std::vector<char>& inside) {
  std::vector<double> sizes;
  std::vector<char> classes;
  for (size_t i = 0; i < inside.size(); ++i) {
    if (!rows.contains(comparison.pair.tokens[i].row)) continue;
    sizes.push_back(comparison.size_of(comparison.differences[i], i));
    classes.push_back(inside[i]);
  }
  return fit_mixture(sizes, {}, comparison.floor).nats -
         fit_mixture(sizes, classes, comparison.floor).nats;
}

// Whether tokens far into their segments differ about as much as those at positions 4 to 8: a few
// keys are enough for wrong scores to show, but what accumulates along the row goes on growing.
bool levels_off(const Comparison& comparison) {
  constexpr int64_t kFew = 4, kSome = 8;
  constexpr double kMostGrowth = 3;
  double logs[2] = {}, counts[2] = {};
  for (size_t i = 0; i < comparison.differences.size(); ++i) {
    const int64_t position = comparison.pair.tokens[i].in_segment;
    if (position < kFew) continue;
    const double size = comparison.size_of(comparison.differences[i], i);
    logs[position > kSome] += std::log(std::max(size, comparison.floor));
    ++counts[position > kSome];
  }
  if (counts[0] == 0 || counts[1] == 0) return true;
  return logs[1] / counts[1] - logs[0] / counts[0] < std::log(kMostGrowth);
}

// The geometric mean of the sizes at positions low to high of the segments; 0 without tokens.
double size_at(const Comparison& comparison, int64_t low, int64_t high) {
  double logs = 0, count = 0;
  for (size_t i = 0; i < comparison.differences.size(); ++i) {
    const int64_t position = comparison.pair.tokens[i].in_segment;
    if (position < low || position > high) continue;
    logs += std::log(std::max(comparison.size_of(comparison.differences[i], i), comparison.floor));
    ++count;
  }
  return count > 0 ? std::exp(logs / count) : 0;
}

int64_t longest_segment(const Comparison& comparison) {
  int64_t length = 0;
  for (const Token& token : comparison.pair.tokens) {
    length = std::max(length, token.in_segment + 1);
  }
  return length;
}

// Whether the difference falls along the row, from the first third to the last: a first key that is
// there once more has a share of the attention that falls with the number of keys, and wrong scores
// have no less effect later.
bool fades(const Comparison& comparison) {
  constexpr int64_t kSome = 8;
  constexpr double kLeastFall = 1.25;
  const int64_t third = longest_segment(comparison) / 3;
  const double late = size_at(comparison, 2 * third, INT64_MAX);
  return third > kSome && size_at(comparison, kSome, third) > kLeastFall * late;
}

// Whether the difference grows over the first keys and then stays, as that of other rotary
// frequencies does: from position 1 to positions 2 and 3, or to the second quarter of the row, it
// grows clearly more than in proportion to the position (2.5 times to 2 and 3), and the second half
// differs about as much as that quarter, where what grows in proportion grows by 2 times.
bool grows_and_stays(const Comparison& comparison) {
  constexpr double kLeastStep = 3.5, kLeastRise = 3, kMostGrowth = 1.6;
  const int64_t length = longest_segment(comparison);
  const double first = size_at(comparison, 1, 1), next = size_at(comparison, 2, 3);
  const double quarter = size_at(comparison, length / 4, length / 2 - 1),
               half = size_at(comparison, length / 2, INT64_MAX);
  const double in_proportion = first * 3 / 8 * static_cast<double>(length);
  const bool rises = next > kLeastStep * first || quarter > kLeastRise * in_proportion;
  return first > 0 && rises && half < kMostGrowth * quarter;
}

// The position from which on the tokens differ more: of the sums over positions the split with the
// most contrast. Where the difference grows behind the split, its logarithms show the first step;
// rows that begin elsewhere each look the same, so that such a split is one of all rows.
int64_t late_begin(const Comparison& comparison, bool of_logarithms) {
  const Pair& pair = comparison.pair;
  std::vector<double> sums(pair.length + 1), counts(pair.length + 1);
  const double least = comparison.noise / 16;
  for (size_t i = 0; i < pair.tokens.size(); ++i) {
    const double size = comparison.size_of(comparison.differences[i], i);
    sums[pair.tokens[i].position + 1] += of_logarithms ? std::log1p(size / least) : size;
    ++counts[pair.tokens[i].position + 1];
  }
  for (int64_t p = 0; p < pair.length; ++p) {
    sums[p + 1] += sums[p];
    counts[p + 1] += counts[p];
  }
  const double all = sums.back(), total = counts.back();
  int64_t begin = 0;
  double most = 0;
  for (int64_t p = 1; p < pair.length; ++p) {
    const double n = counts[p], m = total - n;
    if (n == 0 || m == 0) continue;
    const double before = std::max(sums[p] / n, comparison.floor);
    const double after = std::max((all - sums[p]) / m, comparison.floor);
    const double here =
        after > before ? total * std::log(all / total) - n * std::log(before) - m * std::log(after)
                       : -INFINITY;
    if (begin != 0 && here <= most) continue;
    if (after <= before) continue;
    most = here;
    begin = p;
  }
  return begin;
}

std::optional<Claim> judge_late(const Comparison& comparison, int64_t begin, bool in_all_rows) {
  const Pair& pair = comparison.pair;
  const LateRows rows = find_late_rows(comparison, begin);
  const auto inside = tokens_where(comparison, [&](const Token& token) {
    return token.position >= begin && rows.wrong.contains(token.row);
  });
  const double length_nats = std::log(pair.length), wrong = rows.wrong.size();
  const bool in_every = rows.wrong.size() == rows.reaching;
  if (in_all_rows && !in_every) return std::nullopt;
  return judge_place(
      comparison, inside,
      {.cause = "late_positions",
       .text = fmt::format("only positions from {} on differ, {}", begin, rows.text(pair.rows)),
       .likely =
           in_every ? "a limit of the context differs: sliding window, scaling of rotary "
                      "positions, a chunk of prefill"
                    : "these rows alone were continued from other keys and values: a prefix cache, "
                      "a chunk of prefill, weights that changed during generation",
       .description = length_nats + log_choose(static_cast<double>(rows.reaching), wrong),
       .limit = in_every
                    ? wrong * length_nats
                    : std::min(wrong * length_nats, nats_within(comparison, rows.wrong, inside)),
       .grows_behind = in_every});
}

}  // namespace

std::optional<Claim> propose_first_tokens(const Comparison& comparison) {
  const bool packed = comparison.pair.has_segments;
  BestPlace best(comparison);
  // Of each segment: the prompt before its first scored token may be long.
  std::map<std::pair<int64_t, int64_t>, int64_t> first;
  for (const Token& token : comparison.pair.tokens) {
    first.try_emplace({token.row, token.segment}, token.in_segment);
  }
  const auto segments = static_cast<double>(first.size());
  const auto number = [&](const Token& token) {
    return token.in_segment - first.at({token.row, token.segment}) + 1;
  };
  for (const int64_t count : {1, 2, 3, 4, 8, 16}) {
    best.offer(
        tokens_where(comparison, [&](const Token& token) { return number(token) <= count; }), [&] {
          return Claim{
              .cause = "first_tokens",
              .text = fmt::format(
                  "only the first {} of each {} {}",
                  count == 1 ? std::string("scored token") : fmt::format("{} scored tokens", count),
                  packed ? "segment" : "row", count == 1 ? "differs" : "differ"),
              .likely = packed ? "the first targets of a packed sequence were taken from its "
                                 "neighbor; shift within each segment"
                               : "the first token is scored from a wrong state or a BOS token is "
                                 "missing in one file"};
        });
  }
  return best.judge(segments * std::log(comparison.pair.length));
}

std::optional<Claim> propose_attention_scores(const Comparison& comparison) {
  const Pair& pair = comparison.pair;
  std::set<std::pair<int64_t, int64_t>> units;
  for (const Token& token : pair.tokens) {
    if (token.in_segment == 1) units.emplace(token.row, token.segment);
  }
  auto claim = judge_place(
      comparison,
      tokens_where(comparison, [](const Token& token) { return token.in_segment >= 2; }),
      {.cause = "attention_scores",
       .text = fmt::format("the token at position 1 of each {} is right, and all later ones differ",
                           pair.has_segments ? "segment" : "row"),
       .likely =
           "the scores of attention differ: the queries, the keys, the rotary positions, their "
           "frequencies (theta) or the scale; position 1 does not show it, since attention over "
           "one key is always 1",
       .description = std::log(2),
       .limit = static_cast<double>(units.size()) * std::log(pair.length),
       .splits_each_unit = true,
       .grows_at_first = true});
  // Differences that grow along the row are small at position 1, but not noise.
  const bool fits = claim && claim->leaves_noise && !fades(comparison) &&
                    (levels_off(comparison) || grows_and_stays(comparison));
  return fits ? claim : std::nullopt;
}

std::string extra_key_text(const Comparison& comparison) {
  constexpr double kLeastStep = 6;
  const double first = size_at(comparison, 1, 1), next = size_at(comparison, 2, 3);
  const int64_t last_third = longest_segment(comparison) / 3 * 2;
  if (!fades(comparison) || first == 0 || first > comparison.noise || next < kLeastStep * first)
    return "";
  return fmt::format(
      "the first key may be there twice in one file, as a second BOS token of a template is: the "
      "typical difference is {:.2g} of 1 + |logprob| at position 1, {:.2g} at positions 2 and 3, "
      "and "
      "falls to {:.2g} from {} on; compare the prompts' tokens that the model was given",
      first, next, size_at(comparison, last_third, INT64_MAX), last_third);
}

std::optional<Claim> propose_pack_boundary(const Comparison& comparison) {
  if (!comparison.pair.has_segments) return std::nullopt;
  BestPlace best(comparison);
  int64_t last = 0;
  for (const Token& token : comparison.pair.tokens) last = std::max(last, token.segment);
  for (int64_t from = 1; from <= last; ++from) {
    const auto inside = [&](const Token& token) { return token.segment >= from; };
    best.offer(tokens_where(comparison, inside), [&] {
      return Claim{
          .cause = "pack_boundary",
          .text = from == 1
                      ? "the first segment of each row is right, and all later ones differ"
                      : fmt::format("segments 0 to {} of each row are right, and all from segment "
                                    "{} on differ",
                                    from - 1, from),
          .likely = from == 1 ? "attention reaches over the pack boundary in one file, or its "
                                "position_ids do not restart; check cu_seqlens and position_ids"
                              : fmt::format("cu_seqlens or position_ids are wrong from segment {} "
                                            "on; check their entries from there",
                                            from),
          .description = std::log(last),
          .splits_each_unit = true,
          .grows_behind = true};
    });
  }
  const auto segment = [](const Token& token) { return std::pair(token.row, token.segment); };
  return best.judge(best.found() ? limit_of_units(comparison, best.inside(), segment) : 0);
}

std::optional<Claim> propose_late_positions(const Comparison& comparison) {
  std::optional<Claim> best;
  int64_t before = 0;
  for (const bool of_logarithms : {false, true}) {
    const int64_t begin = late_begin(comparison, of_logarithms);
    if (begin <= 2 || begin == before) continue;  // propose_attention_scores()
    before = begin;
    auto claim = judge_late(comparison, begin, of_logarithms);
    keep_better(best, std::move(claim));
  }
  return best;
}

}  // namespace shardproof::sim::logprobs
