// Evidence from the signs of differences, for causes that bound b and predict no value.
//
// Without a cause each sign is a coin's throw. Under a cause, a token whose difference is possible
// and would be impossible with the other sign gains log(2 * 0.99); an impossible one is one of 1%
// outliers and loses log(50). A token that is possible with both signs is not evidence. A token
// whose value is the same in both files, but must not be under a cause, is an outlier too.
#pragma once

#include <cmath>
#include <vector>

#include "base/quantile.h"
#include "sim/uses/logprobs/claim.h"

namespace shardproof::sim::logprobs {

inline constexpr double kOutliers = 0.01;

struct Signs {
  double fitting = 0, opposite = 0, free = 0;
  double still = 0;  // outliers that are the same in both files; counted by count_still() alone
  double squared = 0, squared_possible = 0;  // of all differences; of the clear and possible ones

  double clear() const { return fitting + opposite + free; }
  double informative() const { return fitting + opposite + still; }
  double share() const { return squared_possible / squared; }
  double nats() const {
    return fitting * std::log(2 * (1 - kOutliers)) + (opposite + still) * std::log(2 * kOutliers);
  }
};

// Tolerances as shares of the noise of the dtype: the noise of two files is often below it.
inline constexpr double kTolerances[] = {0.125, 0.25, 0.5, 1};
// The best of judge(whether B is the file that is changed, tolerance).
template <class Judge>
std::optional<Claim> best_of(double noise, const Judge& judge) {
  std::optional<Claim> best;
  for (const bool of_b : {true, false}) {
    for (const double share : kTolerances) {
      auto claim = judge(of_b, share * noise);
      if (claim && may_be_claimed(*claim)) keep_better(best, std::move(claim));
    }
  }
  return best;
}

// Differences of fewer tolerances are not evidence.
inline constexpr double kClear = 3;

// Counts the clear differences of each `step`-th token. possible(i, b, allowed) returns whether
// token i can have the value b; `allowed` is the tolerance of that token.
template <class Possible>
Signs count_signs(const Comparison& comparison, double tolerance, const Possible& possible,
                  size_t step = 1) {
  Signs signs;
  for (size_t i = 0; i < comparison.differences.size(); i += step) {
    const double difference = comparison.differences[i];
    signs.squared += difference * difference;
    if (comparison.size_of(difference, i) < kClear * tolerance) continue;
    const double a = comparison.pair.tokens[i].a;
    const double allowed = tolerance * comparison.weights[i];
    if (!possible(i, a + difference, allowed)) {
      signs.opposite += 1;
      continue;
    }
    signs.squared_possible += difference * difference;
    // A value above 0 is not a logprob, so it is not evidence that a cause excludes it.
    const double mirror = a - difference;
    const bool is_free = mirror > allowed || possible(i, mirror, allowed);
    (is_free ? signs.free : signs.fitting) += 1;
  }
  return signs;
}

// The tokens among each `step`-th whose difference is not clear, though they cannot have their
// value, nor one as far from it as noise takes them.
template <class Possible>
double count_still(const Comparison& comparison, double tolerance, const Possible& possible,
                   size_t step = 1) {
  double still = 0;
  for (size_t i = 0; i < comparison.differences.size(); i += step) {
    const double difference = comparison.differences[i];
    if (comparison.size_of(difference, i) >= kClear * tolerance) continue;
    const double allowed = 2 * kClear * tolerance * comparison.weights[i];
    still += possible(i, comparison.pair.tokens[i].a + difference, allowed) ? 0 : 1;
  }
  return still;
}

// The nats of `yes` among `all` when their share is known.
inline double bernoulli_nats(double yes, double all) {
  if (yes <= 0 || yes >= all) return 0;
  return -yes * std::log(yes / all) - (all - yes) * std::log(1 - yes / all);
}

// A token of a probability below this has likely alternatives: it is open.
inline constexpr double kOpen = 0.5;
inline constexpr double kSmallMove = 0.1;  // of the median of the clear differences

// What a claim loses because open tokens, which must move, keep their logprob, as they do where few
// tokens are wrong: the nats by which the share of these codes them shorter than `most_still` does.
// logprob(i) says whether token i is open, move(i) is its difference in the claim's direction.
template <class Logprob, class Move>
double nats_of_still_tokens(const Comparison& comparison, double tolerance, double most_still,
                            const Logprob& logprob, const Move& move) {
  const auto is_clear = [&](size_t i) {
    return comparison.size_of(comparison.differences[i], i) >= kClear * tolerance;
  };
  std::vector<double> clear;
  for (size_t i = 0; i < comparison.differences.size(); ++i) {
    if (is_clear(i)) clear.push_back(std::abs(comparison.differences[i]));
  }
  if (clear.empty()) return 0;
  const double small = kSmallMove * median(std::move(clear));
  double open = 0, still = 0;
  for (size_t i = 0; i < comparison.differences.size(); ++i) {
    if (logprob(i) >= std::log(kOpen)) continue;
    open += 1;
    still += !is_clear(i) && move(i) < small ? 1 : 0;
  }
  if (still <= most_still * open) return 0;
  return -still * std::log(most_still) - (open - still) * std::log(1 - most_still) -
         bernoulli_nats(still, open);
}

}  // namespace shardproof::sim::logprobs
