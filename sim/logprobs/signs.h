// Evidence from the signs of differences, for causes that bound b and predict no value.
//
// Without a cause each sign is a coin's throw. Under a cause, a token whose difference is possible
// and would be impossible with the other sign gains log(2 * 0.99); an impossible one is one of 1%
// outliers and loses log(50). A token that is possible with both signs is no evidence.
#pragma once

#include <cmath>
#include <vector>

#include "sim/logprobs/claim.h"

namespace shardproof::sim::logprobs {

inline constexpr double kOutliers = 0.01;

struct Signs {
  double fitting = 0, opposite = 0, free = 0;
  double squared = 0, squared_possible = 0;  // of all differences; of the clear and possible ones

  double clear() const { return fitting + opposite + free; }
  double informative() const { return fitting + opposite; }
  double share() const { return squared_possible / squared; }
  double nats() const {
    return fitting * std::log(2 * (1 - kOutliers)) + opposite * std::log(2 * kOutliers);
  }
};

// Tolerances as shares of the noise of the dtype: the noise of two files is often below it.
inline constexpr double kTolerances[] = {0.125, 0.25, 0.5, 1};
// Differences of fewer tolerances are no evidence.
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
    // A value above 0 is no logprob, so it is no evidence that a cause excludes it.
    const double mirror = a - difference;
    const bool is_free = mirror > allowed || possible(i, mirror, allowed);
    (is_free ? signs.free : signs.fitting) += 1;
  }
  return signs;
}

}  // namespace shardproof::sim::logprobs
