// Causes that predict b from other tokens of a: shifts, rows and chunks in another order; and
// tokens that one file did not score.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "sim/uses/logprobs/causes.h"

namespace shardproof::sim::logprobs {
namespace {

constexpr int64_t kMostShift = 4;
constexpr int64_t kSampledPositions = 256, kMostCompared = 1 << 28;
constexpr double kInPlace = 0.05;    // a part at this distance from its own is where it belongs
constexpr double kMuchNearer = 0.5;  // a row's new source is so much nearer than its own row

std::optional<Claim> better(std::optional<Claim> one, std::optional<Claim> other) {
  if (!one || !other) return one ? std::move(one) : std::move(other);
  return one->score() >= other->score() ? std::move(one) : std::move(other);
}

// Whether the first tokens of segments show no shift over the boundary: most would take a logprob
// of their neighbor, and are 0.
bool stops_at_segments(const Pair& pair, int64_t by) {
  int64_t crossing = 0, zero = 0;
  const auto total = static_cast<int64_t>(pair.b.size());
  for (int64_t i = std::max<int64_t>(0, -by); i < std::min(total, total - by); ++i) {
    const bool same_row = i / pair.length == (i + by) / pair.length;
    const bool crosses = same_row && pair.segment[i] != pair.segment[i + by];
    if (!crosses || pair.counts[i] == 0 || pair.counts[i + by] == 0 || pair.a[i + by] == 0)
      continue;
    ++crossing;
    zero += pair.b[i] == 0 ? 1 : 0;
  }
  return 2 * zero > crossing;
}

std::optional<Claim> judge_shift(const Comparison& comparison, int64_t by, bool in_segments) {
  const Pair& pair = comparison.pair;
  if (!in_segments && stops_at_segments(pair, by)) return std::nullopt;
  std::vector<double> predicted;
  for (const Token& token : pair.tokens) {
    const int64_t from = token.position + by, place = pair.at(token.row, token.position);
    const bool inside = from >= 0 && from < pair.length && pair.counts[place + by] != 0 &&
                        std::isfinite(pair.a[place + by]);
    const bool same = inside && (!in_segments || pair.segment[place] == pair.segment[place + by]);
    predicted.push_back(same ? pair.a[place + by] : NAN);
  }
  return judge_prediction(
      comparison, predicted,
      {.cause = "shift",
       .text = fmt::format("B[t] is A[t {} {}] within each {}", by > 0 ? "+" : "-", std::abs(by),
                           in_segments ? "segment" : "row"),
       .likely = "one file holds at t the logprob of token t + 1, or a target was shifted twice or "
                 "not at all; shift one of them",
       .description = std::log(2.0 * kMostShift * 2)});
}

// How far part `of_b` of b is from part `of_a` of a, from 0 to 1; parts are rows or chunks. Which
// tokens count is known of the parts of a alone: those of b may have another length there.
template <class Index>
double distance(const Pair& pair, int64_t size, const Index& index, int64_t of_a, int64_t of_b) {
  double sum = 0, count = 0;
  for (int64_t k = 0; k < size; ++k) {
    const double a = pair.a[index(of_a, k)], b = pair.b[index(of_b, k)];
    if (pair.counts[index(of_a, k)] == 0 || (a == 0 && b == 0)) continue;
    if (!std::isfinite(a) || !std::isfinite(b)) continue;
    sum += a == 0 || b == 0 ? 1 : std::min(1.0, std::abs(b - a) / (1 + std::abs(b)));
    ++count;
  }
  return count > 0 ? sum / count : 1;
}

// For each part of b the part of a that it is nearest to; its own where no other is much nearer.
template <class Index>
std::vector<int64_t> find_sources(const Pair& pair, int64_t parts, int64_t size,
                                  const Index& index) {
  std::vector<int64_t> sources;
  for (int64_t part = 0; part < parts; ++part) {
    const double own = distance(pair, size, index, part, part);
    double least = own > kInPlace ? kMuchNearer * own : 0;
    sources.push_back(part);
    for (int64_t other = 0; other < parts && least > 0; ++other) {
      const double here = other == part ? 1 : distance(pair, size, index, other, part);
      if (here >= least) continue;
      least = here;
      sources.back() = other;
    }
  }
  return sources;
}

int64_t count_moved(const std::vector<int64_t>& sources) {
  int64_t moved = 0;
  for (size_t i = 0; i < sources.size(); ++i) moved += sources[i] != static_cast<int64_t>(i);
  return moved;
}

std::optional<int64_t> rotation_of(const std::vector<int64_t>& sources) {
  const auto n = static_cast<int64_t>(sources.size());
  for (int64_t i = 0; i < n; ++i) {
    if (sources[i] != (i + sources[0]) % n) return std::nullopt;
  }
  return sources[0];
}

// Row r of b is row (r % n) * (rows / n) + r / n of a.
std::optional<int64_t> deal_of(const std::vector<int64_t>& sources) {
  const auto rows = static_cast<int64_t>(sources.size());
  for (int64_t n = 2; n < rows; ++n) {
    if (rows % n != 0) continue;
    bool all = true;
    for (int64_t r = 0; r < rows; ++r) all = all && sources[r] == r % n * (rows / n) + r / n;
    if (all) return n;
  }
  return std::nullopt;
}

std::string list_of_moves(const std::vector<int64_t>& sources, const char* what) {
  constexpr int64_t kListed = 4;
  std::vector<std::string> texts;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i] == static_cast<int64_t>(i)) continue;
    if (static_cast<int64_t>(texts.size()) == kListed) break;
    texts.push_back(fmt::format("{} {} of B is {} {} of A", what, i, what, sources[i]));
  }
  const int64_t more = count_moved(sources) - static_cast<int64_t>(texts.size());
  return fmt::format("{}{}", fmt::join(texts, ", "),
                     more > 0 ? fmt::format(", and {} more are moved", more) : "");
}

std::string order_of_rows(const std::vector<int64_t>& sources) {
  const auto n = static_cast<int64_t>(sources.size());
  if (const auto by = rotation_of(sources); by && n > 2) {
    return fmt::format("the rows of B are those of A rotated by {}: row r is row r + {}", *by, *by);
  }
  if (const auto dealt = deal_of(sources)) {
    return fmt::format("the rows of B are those of {} blocks of A in turn", *dealt);
  }
  bool reversed = n > 2;
  for (int64_t i = 0; i < n; ++i) reversed = reversed && sources[i] == n - 1 - i;
  if (reversed) return "the rows of B are those of A in reverse";
  std::vector<int64_t> sorted = sources;
  std::sort(sorted.begin(), sorted.end());
  const bool twice = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  return list_of_moves(sources, "row") + (twice ? "; some rows of A are there twice" : "");
}

// Chunks 0, 2n - 1, 1, 2n - 2, ...: rank r of a context mesh holds chunks r and 2n - 1 - r.
bool is_zigzag(const std::vector<int64_t>& sources) {
  const auto n = static_cast<int64_t>(sources.size());
  for (int64_t i = 0; i < n; ++i) {
    if (sources[i] != (i % 2 == 0 ? i / 2 : n - 1 - i / 2)) return false;
  }
  return n > 2;
}

std::vector<int64_t> inverse_of(const std::vector<int64_t>& sources) {
  std::vector<int64_t> inverse(sources.size(), -1);
  for (size_t i = 0; i < sources.size(); ++i) inverse[sources[i]] = static_cast<int64_t>(i);
  return inverse;
}

std::optional<Claim> judge_chunks(const Comparison& comparison, int64_t chunks) {
  const Pair& pair = comparison.pair;
  if (pair.length % chunks != 0 || pair.length / chunks < 2) return std::nullopt;
  const int64_t size = pair.length / chunks;
  // Parts of all rows, of few positions each where there are many.
  const int64_t rows = std::min<int64_t>(pair.rows, 1 + 65536 / pair.length);
  const auto index = [&](int64_t chunk, int64_t k) {
    return pair.at(k / size, chunk * size + k % size);
  };
  const std::vector<int64_t> sources = find_sources(pair, chunks, rows * size, index);
  const int64_t moved = count_moved(sources);
  if (moved == 0) return std::nullopt;
  std::vector<double> predicted;
  for (const Token& token : pair.tokens) {
    const int64_t from =
        pair.at(token.row, sources[token.position / size] * size + token.position % size);
    predicted.push_back(pair.counts[from] != 0 && std::isfinite(pair.a[from]) ? pair.a[from] : NAN);
  }
  const bool zigzag = is_zigzag(sources) || is_zigzag(inverse_of(sources));
  const std::string text =
      zigzag ? fmt::format("the {} chunks of each row of {} are in zigzag order", chunks,
                           is_zigzag(sources) ? "B" : "A")
             : fmt::format("of {} chunks of each row, {}", chunks, list_of_moves(sources, "chunk"));
  return judge_prediction(
      comparison, predicted,
      {.cause = "chunk_order",
       .text = text,
       .likely = zigzag ? "the zigzag of context parallelism was not undone when its ranks' "
                          "logprobs were gathered"
                        : "the chunks of context ranks were gathered in another order",
       .description = static_cast<double>(moved) * std::log(chunks) + std::log(4)});
}

constexpr double kLeastZeros = 3, kMostOf = 0.75;  // tokens; of those that differ

// Tokens that are 0 in one file: `far` ones differ by more than noise, `near` ones may be certain.
enum Zero : char { kScored, kNear, kFar };

// Whether the far ones are the first or the last tokens of their rows, some near ones among them.
bool are_at_end(const Pair& pair, const std::vector<Zero>& zeros, bool last) {
  bool ended = false;
  int64_t row = -1;
  for (size_t k = 0; k < zeros.size(); ++k) {
    const size_t i = last ? zeros.size() - 1 - k : k;
    if (pair.tokens[i].row != row) ended = false;
    row = pair.tokens[i].row;
    if (zeros[i] == kFar && ended) return false;
    ended = ended || zeros[i] == kScored;
  }
  return true;
}

// Where the far ones are: "; they are the last ones of their rows, 1 in each of 24 rows".
struct ZeroPlace {
  bool first = false, last = false;
  std::string text, likely = "a mask was applied in one file alone; give both the same mask";
};

// Whether no row with a far one has a token that both files score.
bool are_whole_rows(const Pair& pair, const std::vector<Zero>& zeros) {
  std::set<int64_t> far, scored;
  for (size_t i = 0; i < zeros.size(); ++i) {
    if (zeros[i] != kNear) (zeros[i] == kFar ? far : scored).insert(pair.tokens[i].row);
  }
  return std::ranges::none_of(far, [&](int64_t row) { return scored.contains(row); });
}

ZeroPlace place_of(const Pair& pair, const std::vector<Zero>& zeros) {
  ZeroPlace place;
  std::map<int64_t, int64_t> of_row;
  std::set<int64_t> ids;
  for (size_t i = 0; i < zeros.size(); ++i) {
    if (zeros[i] != kFar) continue;
    ++of_row[pair.tokens[i].row];
    ids.insert(pair.tokens[i].id);
  }
  if (are_whole_rows(pair, zeros)) {
    place.text =
        fmt::format("; they are all of {} in {} of {} rows",
                    of_row.size() == 1 ? "their row" : "their rows", of_row.size(), pair.rows);
    place.likely = "one file lacks these rows: a microbatch, or the part of a rank, was not scored";
    return place;
  }
  place.first = are_at_end(pair, zeros, false);
  place.last = !place.first && are_at_end(pair, zeros, true);
  if (place.first || place.last) {
    int64_t fewest = INT64_MAX, most = 0;
    for (const auto& [row, count] : of_row) {
      fewest = std::min(fewest, count);
      most = std::max(most, count);
    }
    place.text = fmt::format(
        "; they are the {} ones of their rows, {} in {} of {} rows", place.first ? "first" : "last",
        fewest == most ? std::to_string(most) : fmt::format("{} to {}", fewest, most),
        of_row.size(), pair.rows);
    place.likely = place.first
                       ? "the prompt is masked in one file alone; give both the same mask"
                       : "one file does not score how the rows end: the end token, or what is "
                         "behind its limit of length; give both the same mask";
  }
  if (ids.size() == 1 && *ids.begin() >= 0)
    place.text +=
        fmt::format("{} all have token id {}", place.text.empty() ? ";" : ", and", *ids.begin());
  return place;
}

double entropy_nats(double count, double total) {
  if (count <= 0 || count >= total) return 0;
  const double p = count / total;
  return -total * (p * std::log(p) + (1 - p) * std::log(1 - p));
}

std::optional<Claim> judge_unscored(const Comparison& comparison, bool in_b) {
  const Pair& pair = comparison.pair;
  std::vector<Zero> zeros;
  std::vector<double> others = comparison.differences;
  double count = 0, squared = 0, differing = 0;
  for (size_t i = 0; i < pair.tokens.size(); ++i) {
    const Token& token = pair.tokens[i];
    const bool zero = (in_b ? token.b : token.a) == 0;
    differing += comparison.size_of(others[i], i) > comparison.noise ? 1 : 0;
    const bool far = std::abs(others[i]) > kMostNoise * comparison.noise;
    zeros.push_back(!zero ? kScored : far ? kFar : kNear);
    if (zeros.back() != kFar) continue;
    squared += others[i] * others[i];
    others[i] = NAN;
    ++count;
  }
  if (count == 0) return std::nullopt;
  const ZeroPlace place = place_of(pair, zeros);
  const bool everywhere = std::find(zeros.begin(), zeros.end(), kScored) == zeros.end();
  const auto total = static_cast<double>(pair.tokens.size());
  Claim claim{.cause = "unscored",
              .text = fmt::format("{:.0f} of {:.0f} tokens are 0 in {} and clearly not in {}{}",
                                  count, total, in_b ? "B" : "A", in_b ? "A" : "B", place.text),
              .likely = place.likely,
              .description = place.first || place.last ? pair.rows * std::log(pair.length)
                                                       : entropy_nats(count, total)};
  if (everywhere) {
    claim.text = fmt::format("{} is 0 everywhere: unscored, at {:.0f} tokens that {} has",
                             in_b ? "B" : "A", total, in_b ? "A" : "B");
    claim.likely = "the mask of this file leaves no token, or it was saved before it was scored";
    claim.description = 0;
  }
  claim.gained = -count * std::log(pair.stored_epsilon);
  claim.share = squared / comparison.squared;
  claim.leaves_noise = comparison.is_noise(others);
  // Under other weights, too, a token may become certain, so that its logprob rounds to 0.
  const bool explains =
      count >= kLeastZeros &&
      (claim.leaves_noise || (claim.share >= kLeastShare && count >= kMostOf * differing));
  return explains && claim.chance_nats() >= kChanceNats ? std::optional(claim) : std::nullopt;
}

}  // namespace

std::optional<Claim> propose_shift(const Comparison& comparison) {
  std::optional<Claim> best;
  for (int64_t by = -kMostShift; by <= kMostShift; ++by) {
    if (by == 0) continue;
    best = better(std::move(best), judge_shift(comparison, by, false));
    if (!comparison.pair.has_segments) continue;
    best = better(std::move(best), judge_shift(comparison, by, true));
  }
  return best;
}

std::optional<Claim> propose_rows(const Comparison& comparison) {
  const Pair& pair = comparison.pair;
  const int64_t affordable = std::max<int64_t>(kMostCompared / (pair.rows * pair.rows), 8);
  const int64_t positions = std::min(kSampledPositions, affordable);
  const int64_t step = (pair.length + positions - 1) / positions;
  const auto sampled = [&](int64_t row, int64_t k) { return pair.at(row, k * step); };
  const std::vector<int64_t> sources =
      find_sources(pair, pair.rows, (pair.length + step - 1) / step, sampled);
  const int64_t moved = count_moved(sources);
  if (moved == 0) return std::nullopt;
  std::vector<double> predicted;
  for (const Token& token : pair.tokens) {
    const int64_t from = pair.at(sources[token.row], token.position);
    predicted.push_back(pair.counts[from] != 0 && std::isfinite(pair.a[from]) ? pair.a[from] : NAN);
  }
  return judge_prediction(
      comparison, predicted,
      {.cause = "rows",
       .text = order_of_rows(sources),
       .likely = "the rows were sorted, dealt to ranks or gathered in another order, and the order "
                 "was not restored",
       .description = static_cast<double>(moved) * std::log(pair.rows)});
}

std::optional<Claim> propose_chunks(const Comparison& comparison) {
  std::optional<Claim> best;
  for (const int64_t chunks : {2, 4, 8, 16}) {
    best = better(std::move(best), judge_chunks(comparison, chunks));
  }
  return best;
}

std::optional<Claim> propose_unscored(const Comparison& comparison) {
  return better(judge_unscored(comparison, true), judge_unscored(comparison, false));
}

}  // namespace shardproof::sim::logprobs
