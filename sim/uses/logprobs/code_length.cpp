#include "sim/uses/logprobs/code_length.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/quantile.h"

namespace shardproof::sim::logprobs {
namespace {

constexpr int kRounds = 20;
constexpr double kRarest = 1e-6;

double mean_of_class(const std::vector<double>& sizes, const std::vector<char>& classes,
                     int wanted) {
  double sum = 0, count = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (classes[i] != wanted) continue;
    sum += sizes[i];
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

struct Sums {
  double tokens = 0, wrong = 0;
};

// One round of expectation and maximization; returns the nats before it.
double improve(Mixture& mixture, const std::vector<double>& sizes, const std::vector<char>& classes,
               double floor) {
  std::vector<Sums> of_class(mixture.wrong.size());
  double nats = 0, small_sum = 0, large_sum = 0, small_count = 0, large_count = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const size_t c = classes.empty() ? 0 : classes[i];
    const double x = sizes[i];
    const double right = (1 - mixture.wrong[c]) / mixture.small * std::exp(-x / mixture.small);
    const double wrong = mixture.wrong[c] / mixture.large * std::exp(-x / mixture.large);
    const double sum = right + wrong;
    // Both underflow only far above the larger scale.
    const double share = sum > 0 ? wrong / sum : 1;
    nats -=
        sum > 0 ? std::log(sum) : std::log(mixture.wrong[c] / mixture.large) - x / mixture.large;
    of_class[c].tokens += 1;
    of_class[c].wrong += share;
    small_sum += (1 - share) * x;
    small_count += 1 - share;
    large_sum += share * x;
    large_count += share;
  }
  for (size_t c = 0; c < of_class.size(); ++c) {
    const double share = of_class[c].tokens > 0 ? of_class[c].wrong / of_class[c].tokens : 0;
    mixture.wrong[c] = std::clamp(share, kRarest, 1 - kRarest);
  }
  if (small_count > 0) mixture.small = std::max(small_sum / small_count, floor);
  if (large_count > 0) mixture.large = std::max(large_sum / large_count, mixture.small);
  return nats;
}

}  // namespace

Mixture fit_mixture(const std::vector<double>& sizes, const std::vector<char>& classes,
                    double floor) {
  if (sizes.empty()) return {.small = floor, .large = floor, .wrong = {0.5}};
  const int num_classes =
      classes.empty() ? 1 : 1 + *std::max_element(classes.begin(), classes.end());
  std::vector<double> sorted = sizes;
  std::vector<std::pair<double, double>> starts;
  for (const auto& [low, high] : {std::pair{0.05, 0.6}, {0.25, 0.9}, {0.5, 0.99}}) {
    const double small = quantile(sorted, low);
    starts.emplace_back(small, quantile(sorted, high));
  }
  if (num_classes > 1) {
    starts.emplace_back(mean_of_class(sizes, classes, 0), mean_of_class(sizes, classes, 1));
  }
  Mixture best{.small = 0, .large = 0, .wrong = {}, .nats = INFINITY};
  for (const auto& [low, high] : starts) {
    const double small = std::max(std::min(low, high), floor);
    Mixture mixture{.small = small,
                    .large = std::max({low, high, 2 * small}),
                    .wrong = std::vector<double>(num_classes, 0.3)};
    for (int round = 0; round <= kRounds; ++round) {
      Mixture next = mixture;
      mixture.nats = improve(next, sizes, classes, floor);
      if (mixture.nats < best.nats) best = mixture;
      mixture = next;
    }
  }
  return best;
}

}  // namespace shardproof::sim::logprobs
