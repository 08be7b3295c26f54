// How many nats differences cost when nothing explains them.
//
// The size x of a difference, relative to its weight, is coded by a mixture of two exponential
// densities: the tokens that are right have differences of the scale `small`, the wrong ones of the
// scale `large`. Tokens are in classes, and each class has its own share of wrong tokens:
//
//   nats = -sum over tokens of log((1 - wrong[c]) exp(-x / small) / small
//                                  + wrong[c] exp(-x / large) / large)
#pragma once

#include <vector>

namespace shardproof::sim::logprobs {

struct Mixture {
  double small, large;
  std::vector<double> wrong;  // of each class
  double nats = 0;
};

// Fits the mixture from several starts and returns the shortest. `classes` may be empty: all
// tokens are in one class. No scale is below `floor`.
Mixture fit_mixture(const std::vector<double>& sizes, const std::vector<char>& classes,
                    double floor);

}  // namespace shardproof::sim::logprobs
