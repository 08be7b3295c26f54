#include "sim/uses/logprobs/claim.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/quantile.h"

namespace shardproof::sim::logprobs {
namespace {

// A claim explains at least half, even where noise of the dtype remains.
constexpr double kHalf = 0.5;
// A prediction that leaves more than noise brings so many of the differing tokens nearer: else a
// few large differences alone would speak for it.
constexpr double kLeastNearer = 0.75;
// Tokens that differ, where a claim has a free number.
constexpr double kFewestFitted = 4;
// A place that holds more of the tokens says nothing.
constexpr double kNearlyAll = 0.95;

std::vector<double> sizes_of(const Comparison& comparison, const std::vector<double>& differences) {
  std::vector<double> sizes(differences.size());
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = comparison.size_of(differences[i], i);
  return sizes;
}

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

double noise_of(double epsilon) {
  const bool half = epsilon > 1e-4;
  return (half ? 2 : 64) * epsilon;
}

bool may_be_claimed(const Claim& claim) {
  const bool explains = claim.share >= (claim.leaves_noise ? kHalf : kLeastShare);
  return explains && claim.chance_nats() >= kChanceNats;
}

Comparison::Comparison(const Pair& given)
    : pair(given), noise(noise_of(given.epsilon)), floor(given.stored_epsilon / 8) {
  for (const Token& token : pair.tokens) {
    weights.push_back(1 + std::min(std::abs(token.a), std::abs(token.b)));
    differences.push_back(token.b - token.a);
    squared += differences.back() * differences.back();
  }
  nats = fit_mixture(sizes_of(*this, differences), {}, floor).nats;
}

bool Comparison::is_noise(const std::vector<double>& remaining, double noise_of_dtype) const {
  double sum = 0, count = 0;
  for (size_t i = 0; i < remaining.size(); ++i) {
    if (std::isnan(remaining[i])) continue;
    const double size = size_of(remaining[i], i);
    if (size > kMostNoise * noise_of_dtype) return false;
    sum += size;
    ++count;
  }
  return sum <= kMeanNoise * noise_of_dtype * count;
}

bool Comparison::is_above_noise(size_t token) const {
  return size_of(differences[token], token) > kMostNoise * noise;
}

int64_t Comparison::count_above_noise() const {
  int64_t count = 0;
  for (size_t i = 0; i < differences.size(); ++i) count += is_above_noise(i) ? 1 : 0;
  return count;
}

std::optional<Claim> judge_prediction(const Comparison& comparison,
                                      const std::vector<double>& predicted, Claim claim,
                                      bool turned) {
  const std::vector<Token>& tokens = comparison.pair.tokens;
  std::vector<double> coded = comparison.differences, remaining(tokens.size(), NAN);
  std::vector<char> classes(tokens.size(), 1);  // 0: predicted
  double left = 0, before = 0, of_b = 0, effect = 0, covered = 0, differing = 0, nearer = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (std::isnan(predicted[i])) continue;
    const double a = turned ? tokens[i].b : tokens[i].a, b = turned ? tokens[i].a : tokens[i].b;
    classes[i] = 0;
    coded[i] = remaining[i] = b - predicted[i];
    left += remaining[i] * remaining[i];
    before += comparison.differences[i] * comparison.differences[i];
    of_b += b * b;
    effect += std::pow(comparison.size_of(predicted[i] - a, i), 2);
    ++covered;
    if (comparison.size_of(comparison.differences[i], i) <= comparison.noise) continue;
    ++differing;
    nearer += std::abs(remaining[i]) < std::abs(comparison.differences[i]) ? 1 : 0;
  }
  if (2 * covered < static_cast<double>(tokens.size()) || before == 0) return std::nullopt;
  if (std::sqrt(effect / covered) < comparison.pair.epsilon / 2) return std::nullopt;
  if (claim.is_fitted && differing < kFewestFitted) return std::nullopt;
  claim.unsaid = std::ssize(tokens) - static_cast<int64_t>(covered);
  claim.share = 1 - left / before;
  claim.leaves_noise = comparison.is_noise(remaining);
  if (claim.share < kHalf) return std::nullopt;
  if (!claim.leaves_noise && nearer < kLeastNearer * differing) return std::nullopt;
  if (!claim.leaves_noise && left > (1 - kLeastShare) * of_b) return std::nullopt;
  claim.gained =
      comparison.nats - fit_mixture(sizes_of(comparison, coded), classes, comparison.floor).nats;
  if (!may_be_claimed(claim)) return std::nullopt;
  return claim;
}

double Contrast::nats(double floor) const {
  if (counts[0] == 0 || counts[1] == 0) return 0;
  const double out = std::max(sums[0] / counts[0], floor),
               in = std::max(sums[1] / counts[1], floor);
  if (in <= out) return 0;
  const double all = std::max((sums[0] + sums[1]) / (counts[0] + counts[1]), floor);
  return (counts[0] + counts[1]) * std::log(all) - counts[0] * std::log(out) -
         counts[1] * std::log(in);
}

double contrast(const Comparison& comparison, const std::vector<char>& inside) {
  Contrast sides;
  for (size_t i = 0; i < inside.size(); ++i) {
    sides.add(inside[i] != 0, comparison.size_of(comparison.differences[i], i), 1);
  }
  return sides.nats(comparison.floor);
}

std::optional<Claim> judge_place(const Comparison& comparison, const std::vector<char>& inside,
                                 Claim claim) {
  const PlaceCounts counts = count_place(comparison, inside);
  std::vector<double> outside = comparison.differences;
  double size_inside = 0, squared_inside = 0;
  for (size_t i = 0; i < inside.size(); ++i) {
    if (inside[i] == 0) continue;
    size_inside += comparison.size_of(comparison.differences[i], i);
    squared_inside += comparison.differences[i] * comparison.differences[i];
    outside[i] = NAN;
  }
  if (counts.inside == 0 || counts.outside == 0) return std::nullopt;
  const double in = size_inside / static_cast<double>(counts.inside);
  if (in < comparison.noise || in < counts.limit) return std::nullopt;
  const double nearly_all = kNearlyAll * static_cast<double>(inside.size());
  if (!claim.splits_each_unit && static_cast<double>(counts.inside) > nearly_all)
    return std::nullopt;
  claim.share = squared_inside / comparison.squared;
  claim.leaves_noise = comparison.is_noise(outside);
  const std::vector<double> all = sizes_of(comparison, comparison.differences);
  claim.gained = comparison.nats - fit_mixture(all, inside, comparison.floor).nats;
  if (!may_be_claimed(claim)) return std::nullopt;
  if (!is_throughout(comparison, inside, counts, claim.grows_at_first, claim.grows_behind))
    return std::nullopt;
  claim.text += fmt::format(
      ": inside {} of {} tokens are wrong and outside {} of {} are right, and the difference "
      "inside is {:.3g} times that outside (a wrong token differs by more than {:.2g} of "
      "1 + |logprob|)",
      counts.wrong_inside, counts.inside, counts.right_outside, counts.outside,
      kLeastContrast * in / counts.limit, counts.limit);
  claim.place = counts;
  return claim;
}

Mixture fit_mixture(const std::vector<double>& sizes, const std::vector<char>& classes,
                    double floor) {
  if (sizes.empty()) return {.small = floor, .large = floor, .wrong = {0.5}};
  const int num_classes = classes.empty() ? 1 : 1 + *std::ranges::max_element(classes);
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
