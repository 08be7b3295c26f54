// Causes that name the wrong tokens and predict no values. The tokens of a row or of a segment are
// wrong together, so a claim about rows or segments counts as many facts as there are of these.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "sim/uses/logprobs/causes.h"

namespace shardproof::sim::logprobs {
namespace {

double log_choose(double n, double k) {
  return std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1);
}

template <class Predicate>
std::vector<char> tokens_where(const Comparison& comparison, const Predicate& predicate) {
  std::vector<char> inside;
  for (const Token& token : comparison.pair.tokens) inside.push_back(predicate(token) ? 1 : 0);
  return inside;
}

// The nats of choosing the units that are inside among all units of tokens; `unit_of` gives a
// token's unit. Infinite when a unit is only partly inside.
template <class UnitOf>
double limit_of_units(const Comparison& comparison, const std::vector<char>& inside,
                      const UnitOf& unit_of) {
  std::map<decltype(unit_of(comparison.pair.tokens[0])), std::pair<bool, bool>> units;
  for (size_t i = 0; i < inside.size(); ++i) {
    auto& [some_in, some_out] = units[unit_of(comparison.pair.tokens[i])];
    (inside[i] != 0 ? some_in : some_out) = true;
  }
  double in = 0;
  for (const auto& [unit, parts] : units) {
    if (parts.first && parts.second) return INFINITY;
    in += parts.first ? 1 : 0;
  }
  return log_choose(static_cast<double>(units.size()), in);
}

double limit_of_rows(const Comparison& comparison, const std::vector<char>& inside) {
  return limit_of_units(comparison, inside, [](const Token& token) { return token.row; });
}

// One of many places of a family: the one with most contrast is judged.
class BestPlace {
 public:
  explicit BestPlace(const Comparison& comparison) : comparison_(comparison) {}

  template <class MakeClaim>
  void offer(std::vector<char> inside, const MakeClaim& make_claim) {
    ++tried_;
    const double here = contrast(comparison_, inside);
    if (here <= most_) return;
    most_ = here;
    inside_ = std::move(inside);
    claim_ = make_claim();
  }

  bool found() const { return most_ > 0; }
  const std::vector<char>& inside() const { return inside_; }

  std::optional<Claim> judge(double limit = INFINITY) {
    if (!found()) return std::nullopt;
    if (claim_.description == 0) claim_.description = std::log(std::max(tried_, 1));
    claim_.limit = limit;
    return judge_place(comparison_, inside_, claim_);
  }

 private:
  const Comparison& comparison_;
  double most_ = 0;
  int tried_ = 0;
  std::vector<char> inside_;
  Claim claim_;
};

std::string ordinal(int64_t n) {
  return fmt::format("{}{}", n, n == 2 ? "nd" : n == 3 ? "rd" : "th");
}

struct Range {
  int64_t parts, part, size;
  bool contains(int64_t value) const { return value / size == part; }
  std::string text() const { return fmt::format("{} to {}", part * size, (part + 1) * size - 1); }
};

// All parts of equal ranges of [0, size) for these numbers of parts.
std::vector<Range> equal_ranges(int64_t size, const std::vector<int64_t>& numbers) {
  std::vector<Range> ranges;
  for (const int64_t parts : numbers) {
    if (parts >= size) continue;
    for (int64_t part = 0; part < parts; ++part) {
      ranges.push_back({.parts = parts, .part = part, .size = (size + parts - 1) / parts});
    }
  }
  return ranges;
}

bool all_one(const std::vector<char>& inside) {
  return std::adjacent_find(inside.begin(), inside.end(), std::not_equal_to<>()) == inside.end();
}

struct Padding {
  bool left = false, right = false;
};

std::vector<Padding> padding_of_rows(const Pair& pair) {
  std::vector<int64_t> first(pair.rows, pair.length), last(pair.rows, -1);
  for (const Token& token : pair.tokens) {
    first[token.row] = std::min(first[token.row], token.position);
    last[token.row] = std::max(last[token.row], token.position);
  }
  std::vector<Padding> paddings;
  for (int64_t row = 0; row < pair.rows; ++row) {
    paddings.push_back({.left = first[row] > 1, .right = last[row] < pair.length - 1});
  }
  return paddings;
}

}  // namespace

std::optional<Claim> propose_first_tokens(const Comparison& comparison) {
  const bool packed = comparison.pair.has_segments;
  BestPlace best(comparison);
  int64_t segments = 0;
  for (const Token& token : comparison.pair.tokens) segments += token.in_segment == 1 ? 1 : 0;
  for (const int64_t count : {1, 2, 3, 4, 8, 16}) {
    best.offer(
        tokens_where(comparison, [&](const Token& token) { return token.in_segment <= count; }),
        [&] {
          return Claim{.cause = "first_tokens",
                       .text = fmt::format("only the first {} scored of each {} differ",
                                           count == 1 ? std::string("token is")
                                                      : fmt::format("{} tokens are", count),
                                           packed ? "segment" : "row"),
                       .likely = packed ? "the first targets of a packed sequence were taken from "
                                          "its neighbor; shift within each segment"
                                        : "the first token is scored from a wrong state or a BOS "
                                          "token is missing in one file"};
        });
  }
  return best.judge(static_cast<double>(segments) * std::log(comparison.pair.length));
}

std::optional<Claim> propose_padded_rows(const Comparison& comparison) {
  const std::vector<Padding> padding = padding_of_rows(comparison.pair);
  BestPlace best(comparison);
  for (const bool left : {false, true}) {
    const auto is_padded = [&](const Token& token) {
      return left ? padding[token.row].left : padding[token.row].right;
    };
    std::vector<char> inside = tokens_where(comparison, is_padded);
    if (all_one(inside)) continue;
    best.offer(std::move(inside), [&] {
      return Claim{
          .cause = "padding",
          .text = fmt::format("only rows with padding on the {} differ", left ? "left" : "right"),
          .likely =
              "padding enters the attention or moves the positions in one file; "
              "check the attention mask and position_ids"};
    });
  }
  return best.judge(best.found() ? limit_of_rows(comparison, best.inside()) : 0);
}

std::optional<Claim> propose_pack_boundary(const Comparison& comparison) {
  if (!comparison.pair.has_segments) return std::nullopt;
  BestPlace best(comparison);
  best.offer(tokens_where(comparison, [](const Token& token) { return token.segment > 0; }), [] {
    return Claim{.cause = "pack_boundary",
                 .text = "the first segment of each row is right, and all later ones differ",
                 .likely =
                     "attention reaches over the pack boundary in one file, or its "
                     "position_ids do not restart; check cu_seqlens and position_ids"};
  });
  const auto segment = [](const Token& token) { return std::pair(token.row, token.segment); };
  return best.judge(best.found() ? limit_of_units(comparison, best.inside(), segment) : 0);
}

std::optional<Claim> propose_versions(const Comparison& comparison) {
  if (!comparison.pair.has_versions) return std::nullopt;
  std::set<int64_t> versions;
  for (const Token& token : comparison.pair.tokens) versions.insert(token.version);
  if (versions.size() < 2) return std::nullopt;
  const int64_t oldest = *versions.begin(), newest = *versions.rbegin();
  BestPlace best(comparison);
  const auto offer = [&](int64_t low, int64_t high, const char* likely) {
    best.offer(
        tokens_where(
            comparison,
            [&](const Token& token) { return low <= token.version && token.version <= high; }),
        [&] {
          return Claim{.cause = "stale_weights",
                       .text = low == high ? fmt::format("only tokens of version {} differ", low)
                               : low == oldest
                                   ? fmt::format("only tokens of version {} and older differ", high)
                                   : fmt::format("only tokens of version {} and newer differ", low),
                       .likely = likely};
        });
  };
  const char* old_ones =
      "these tokens were generated by older weights than those that scored them; "
      "keep the logprobs of generation for them";
  const char* new_ones =
      "one file was scored with weights older than these tokens; refit before "
      "scoring";
  for (const int64_t version : versions) {
    if (version != newest) offer(oldest, version, old_ones);
    if (version != oldest) offer(version, newest, new_ones);
    if (version != newest && version != oldest) offer(version, version, old_ones);
  }
  if (!best.found()) return std::nullopt;
  const auto unit = [](const Token& token) {
    return std::tuple(token.row, token.segment, token.version);
  };
  return best.judge(limit_of_units(comparison, best.inside(), unit));
}

std::optional<Claim> propose_vocabulary_shard(const Comparison& comparison) {
  if (!comparison.pair.has_ids) return std::nullopt;
  const int64_t known = comparison.pair.vocab_size;
  const int64_t vocab_size = known > 0 ? known : comparison.pair.max_id + 1;
  BestPlace best(comparison);
  for (const Range& range : equal_ranges(vocab_size, {2, 3, 4, 6, 8, 16, 32, 64})) {
    best.offer(
        tokens_where(comparison, [&](const Token& token) { return range.contains(token.id); }),
        [&] {
          return Claim{
              .cause = "vocabulary_shard",
              .text = fmt::format("only token ids {} differ, shard {} of {} of the vocabulary",
                                  range.text(), range.part, range.parts),
              .likely =
                  fmt::format("tensor rank {} of {} has other rows of the output head, or its "
                              "share of the target logit is lost",
                              range.part, range.parts)};
        });
  }
  return best.judge();
}

std::optional<Claim> propose_token_id(const Comparison& comparison) {
  if (!comparison.pair.has_ids) return std::nullopt;
  std::map<int64_t, double> squared;
  for (size_t i = 0; i < comparison.differences.size(); ++i) {
    squared[comparison.pair.tokens[i].id] += comparison.differences[i] * comparison.differences[i];
  }
  if (squared.empty()) return std::nullopt;
  const int64_t id =
      std::max_element(squared.begin(), squared.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      })->first;
  return judge_place(
      comparison, tokens_where(comparison, [&](const Token& token) { return token.id == id; }),
      {.cause = "token_id",
       .text = fmt::format("only token id {} differs", id),
       .likely = "this token is masked, penalized or forced in one file (an end or padding token)",
       .description = std::log(static_cast<double>(squared.size()))});
}

std::optional<Claim> propose_replica(const Comparison& comparison) {
  const int64_t rows = comparison.pair.rows;
  std::vector<int64_t> numbers;
  for (const int64_t parts : {2, 3, 4, 6, 8, 16}) {
    if (rows % parts == 0 && parts < rows) numbers.push_back(parts);
  }
  BestPlace best(comparison);
  for (const Range& range : equal_ranges(rows, numbers)) {
    for (const bool in_turn : {false, true}) {
      const auto inside = [&](const Token& token) {
        return in_turn ? token.row % range.parts == range.part : range.contains(token.row);
      };
      best.offer(tokens_where(comparison, inside), [&] {
        return Claim{
            .cause = "replica",
            .text = in_turn ? fmt::format("only rows {}, {}, ... differ, every {}", range.part,
                                          range.part + range.parts, ordinal(range.parts))
                            : fmt::format("only rows {} differ, block {} of {}", range.text(),
                                          range.part, range.parts),
            .likely =
                fmt::format("replica {} of {} has other weights: its update is missing or not "
                            "complete",
                            range.part, range.parts),
            // The number of replicas, then which of them in one of two orders.
            .description = std::log(2.0 * range.parts * numbers.size())};
      });
    }
  }
  return best.judge(best.found() ? limit_of_rows(comparison, best.inside()) : 0);
}

std::optional<Claim> propose_late_positions(const Comparison& comparison) {
  const Pair& pair = comparison.pair;
  // Of the sums over positions the split with the most contrast follows.
  std::vector<double> sums(pair.length + 1), counts(pair.length + 1);
  std::set<int64_t> long_rows;
  for (size_t i = 0; i < pair.tokens.size(); ++i) {
    sums[pair.tokens[i].position + 1] += comparison.size_of(comparison.differences[i], i);
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
  if (begin == 0) return std::nullopt;
  for (const Token& token : pair.tokens) {
    if (token.position >= begin) long_rows.insert(token.row);
  }
  const double length_nats = std::log(pair.length);
  return judge_place(
      comparison,
      tokens_where(comparison, [&](const Token& token) { return token.position >= begin; }),
      {.cause = "late_positions",
       .text = fmt::format("only positions from {} on differ, in every row", begin),
       .likely = "a limit of the context differs: sliding window, scaling of rotary positions, a "
                 "chunk of prefill",
       .description = length_nats,
       .limit = static_cast<double>(long_rows.size()) * length_nats});
}

std::optional<Claim> propose_context_shard(const Comparison& comparison) {
  const Pair& pair = comparison.pair;
  BestPlace best(comparison);
  for (const Range& range : equal_ranges(pair.length, {2, 3, 4, 6, 8, 16})) {
    if (pair.length % range.parts != 0) continue;
    best.offer(tokens_where(comparison,
                            [&](const Token& token) { return range.contains(token.position); }),
               [&] {
                 return Claim{
                     .cause = "context_shard",
                     .text = fmt::format("only positions {} differ, chunk {} of {} of each row",
                                         range.text(), range.part, range.parts),
                     .likely =
                         "one rank of context parallelism computes something else, or its "
                         "neighbors' keys and values do not reach it"};
               });
  }
  return best.judge(static_cast<double>(pair.rows) * std::log(pair.length));
}

}  // namespace shardproof::sim::logprobs
