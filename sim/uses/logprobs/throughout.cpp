#include "sim/uses/logprobs/throughout.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "sim/uses/logprobs/claim.h"
#include "sim/uses/logprobs/signs.h"

namespace shardproof::sim::logprobs {
namespace {

// A unit with less than this share of the other units' wrong tokens is right.
constexpr double kUnitShare = 0.5;
constexpr int64_t kBlocks = 8;  // of positions
// Beside a border, so many tokens of each side are compared, up to some of each row.
constexpr double kBorderTokens = 48, kMostBesideBorder = 8;
constexpr double kLeastStep = 3;
// A step that the difference may grow behind exceeds so many times the growth up to it.
constexpr double kGrowthBefore = 4;

// Its probability is below 1/2; a file may hold losses.
bool is_open(const Token& token) { return std::abs(token.a) > -std::log(kOpen); }

// The tokens of each side that can show it, and the wrong ones among them.
struct Share {
  double wrong = 0, tokens = 0;
  double value() const { return tokens > 0 ? wrong / tokens : 0; }
};

using Unit = std::pair<int64_t, int64_t>;

class Sides {
 public:
  Sides(const Comparison& comparison, const std::vector<char>& inside, const PlaceCounts& counts)
      : tokens_(comparison.pair.tokens), inside_(inside), counts_(counts) {
    for (size_t i = 0; i < inside.size(); ++i) {
      shows_.push_back(can_show(comparison, counts, i) ? 1 : 0);
      add(i, all_[side(i)]);
      auto& [low, high] = positions_[side(i)];
      low = std::min(low, tokens_[i].position);
      high = std::max(high, tokens_[i].position);
    }
  }

  const Share& inside() const { return all_[1]; }

  int64_t block_of(size_t i) const {
    const auto [low, high] = positions_[side(i)];
    return (tokens_[i].position - low) * kBlocks / (high - low + 1);
  }

  // Whether each unit of tokens is like its side. unit_of(i) gives the unit of token i. With
  // `may_be_between` a unit inside with some wrong tokens, more than there are outside, is not
  // right: tokens of an id that is forced are improbable, and differ by a smaller share.
  template <class UnitOf>
  bool are_like_their_side(const UnitOf& unit_of, bool may_be_between = false) const {
    std::array<std::map<Unit, Share>, 2> units;
    for (size_t i = 0; i < inside_.size(); ++i) add(i, units[side(i)][unit_of(i)]);
    const double least = kUnitShare * inside().value();
    for (const size_t side : {size_t{0}, size_t{1}}) {
      const auto expected_at = [&](size_t of) { return std::clamp(all_[of].value(), 0.01, 0.99); };
      for (const auto& [unit, share] : units[side]) {
        const bool other = share.tokens > 0 && (side == 1) == (share.value() < least);
        const auto is_unlike_side = [&](size_t of) {
          return is_unlike(share.wrong, share.tokens, expected_at(of), units[side].size());
        };
        const bool is_between = may_be_between && side == 1 && is_unlike_side(0);
        if (other && !is_between && is_unlike_side(side)) return false;
      }
    }
    return true;
  }

 private:
  size_t side(size_t i) const { return inside_[i] != 0 ? 1 : 0; }
  void add(size_t i, Share& share) const {
    share.wrong += counts_.wrong[i];
    share.tokens += side(i) == 0 ? 1 : shows_[i];
  }

  const std::vector<Token>& tokens_;
  const std::vector<char>& inside_;
  const PlaceCounts& counts_;
  std::vector<char> shows_;
  std::array<Share, 2> all_;
  std::array<Unit, 2> positions_{Unit{INT64_MAX, -1}, Unit{INT64_MAX, -1}};
};

// Whether the sizes step at the borders within rows; true without such borders. Few tokens are
// compared, so geometric means of open ones are taken, of sizes that are not far below the limit.
bool steps_at_borders(const Comparison& comparison, const std::vector<char>& inside, double limit,
                      bool may_grow, bool may_grow_behind) {
  const std::vector<Token>& tokens = comparison.pair.tokens;
  const auto is_border = [&](size_t i) {
    return i > 0 && i < tokens.size() && tokens[i].row == tokens[i - 1].row &&
           inside[i] != inside[i - 1];
  };
  double borders = 0;
  for (size_t i = 1; i < tokens.size(); ++i) borders += is_border(i) ? 1 : 0;
  if (borders == 0) return true;
  // Half of each side's tokens at most, so that as many follow them.
  const auto all_inside = static_cast<double>(std::count(inside.begin(), inside.end(), 1));
  const double fewer = std::min(all_inside, static_cast<double>(inside.size()) - all_inside);
  const double most_reach = std::min(kMostBesideBorder, fewer / borders / 2);
  const double reach =
      std::max(1.0, std::floor(std::min(most_reach, std::ceil(kBorderTokens / borders))));
  enum Window : char { kElsewhere, kFarther, kOutside, kInside, kDeeper };
  std::vector<char> windows(tokens.size());
  for (size_t i = 1; i < tokens.size(); ++i) {
    if (!is_border(i)) continue;
    const auto mark = [&](size_t from, int step) {
      // A difference that may grow over the first tokens shows it over more of them.
      const double near = may_grow && inside[from] != 0 ? kMostBesideBorder : reach;
      for (size_t k = from, n = 0; k < tokens.size() && n < near + reach; k += step, ++n) {
        if (tokens[k].row != tokens[i].row || inside[k] != inside[from]) return;
        if (n < near) {
          windows[k] = inside[k] != 0 ? kInside : kOutside;
        } else if (windows[k] == kElsewhere) {
          windows[k] = inside[k] != 0 ? kDeeper : kFarther;
        }
      }
    };
    mark(i, 1);
    mark(i - 1, -1);
  }
  std::array<double, 5> logs{}, counts{};
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!is_open(tokens[i])) continue;
    const double size = comparison.size_of(comparison.differences[i], i);
    logs[windows[i]] += std::log(std::max(size, limit / 16));
    ++counts[windows[i]];
  }
  if (counts[kOutside] == 0 || counts[kInside] == 0) return true;
  const auto mean = [&](Window window) { return logs[window] / counts[window]; };
  const auto growth = [&](Window from, Window to) {
    return counts[from] > 0 && counts[to] > 0 ? std::max(mean(to) - mean(from), 0.0) : 0;
  };
  // A difference that grows before the border and goes on growing inside has none. Behind a step
  // that the growth before it does not explain, it may go on growing: a window loses one more key
  // at each position.
  const double before = growth(kFarther, kOutside);
  double grown = before + 2 * growth(kInside, kDeeper);
  if (may_grow) grown = 0;
  if (may_grow_behind && counts[kFarther] > 0) grown = std::min(grown, kGrowthBefore * before);
  return mean(kInside) - mean(kOutside) >= std::log(kLeastStep) + grown;
}

}  // namespace

PlaceCounts count_place(const Comparison& comparison, const std::vector<char>& inside) {
  PlaceCounts counts;
  counts.inside_of = inside;
  double sum = 0;
  for (size_t i = 0; i < inside.size(); ++i) {
    ++(inside[i] != 0 ? counts.inside : counts.outside);
    if (inside[i] == 0) sum += comparison.size_of(comparison.differences[i], i);
  }
  const double mean = counts.outside > 0 ? sum / static_cast<double>(counts.outside) : 0;
  counts.limit = kLeastContrast * std::max(mean, comparison.floor);
  for (size_t i = 0; i < inside.size(); ++i) {
    const bool wrong = comparison.size_of(comparison.differences[i], i) > counts.limit;
    counts.wrong.push_back(wrong ? 1 : 0);
    counts.wrong_inside += wrong && inside[i] != 0 ? 1 : 0;
    counts.right_outside += wrong || inside[i] != 0 ? 0 : 1;
  }
  return counts;
}

bool can_show(const Comparison& comparison, const PlaceCounts& counts, size_t token) {
  return counts.wrong[token] != 0 || is_open(comparison.pair.tokens[token]);
}

bool is_unlike(double observed, double count, double expected, double units) {
  const double other = bernoulli_nats(observed, count);
  const double nats =
      -observed * std::log(expected) - (count - observed) * std::log(1 - expected) - other;
  return nats > kChanceNats + std::log(units);
}

bool is_throughout(const Comparison& comparison, const std::vector<char>& inside,
                   const PlaceCounts& counts, bool may_grow, bool may_grow_behind) {
  const Sides sides(comparison, inside, counts);
  const double right = static_cast<double>(counts.right_outside);
  if (sides.inside().value() < kLeastWrong) return false;
  if (right < kLeastRight * static_cast<double>(counts.outside)) return false;
  const std::vector<Token>& tokens = comparison.pair.tokens;
  return sides.are_like_their_side([&](size_t i) { return Unit(tokens[i].row, 0); }) &&
         sides.are_like_their_side(
             [&](size_t i) { return Unit(tokens[i].row, tokens[i].segment); }) &&
         sides.are_like_their_side([&](size_t i) { return Unit(sides.block_of(i), 0); }) &&
         sides.are_like_their_side([&](size_t i) { return Unit(tokens[i].id, 0); }, true) &&
         steps_at_borders(comparison, inside, counts.limit, may_grow, may_grow_behind);
}

}  // namespace shardproof::sim::logprobs
