// Whether the tokens of a place are wrong throughout, and all others right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shardproof::sim::logprobs {

struct Comparison;

// A place is claimed when the tokens there differ so many times more than the others, and a token
// is wrong when it differs so many times more than the mean of the others.
inline constexpr double kLeastContrast = 4;
// So many of the tokens inside that can show it are wrong, and so many outside are right.
inline constexpr double kLeastWrong = 0.65, kLeastRight = 0.95;

struct PlaceCounts {
  int64_t inside = 0, wrong_inside = 0, outside = 0, right_outside = 0;  // tokens
  double limit = 0;                    // the size above which a token is wrong
  std::vector<char> inside_of, wrong;  // of each token
};

PlaceCounts count_place(const Comparison& comparison, const std::vector<char>& inside);

// Whether a token may be wrong and show it: a token with a probability above 1/2 that is right has
// no likely alternatives, so that its logprob hardly moves.
bool can_show(const Comparison& comparison, const PlaceCounts& counts, size_t token);

// Whether `observed` of `count` is unlike the share that is expected: chance does so in less than
// one of 1000 files that have so many units.
bool is_unlike(double observed, double count, double expected, double units);

// At least 65% of the tokens inside that can show it are wrong, and 95% of those outside are
// right. No row, segment, block of positions or token id inside is right, and none outside is
// wrong. Beside the borders within rows the difference steps; it does not grow over many tokens,
// unless it may: over the first tokens, or behind a step from a flat difference.
bool is_throughout(const Comparison& comparison, const std::vector<char>& inside,
                   const PlaceCounts& counts, bool may_grow, bool may_grow_behind);

}  // namespace shardproof::sim::logprobs
