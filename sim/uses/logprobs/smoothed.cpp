// One file has the logprob of smoothed targets: (1 - eps) times the token's own, plus eps times the
// mean over the vocabulary, which is far below nearly every token that was drawn. So it is nearly a
// line over the other file, it falls at likely and at unlikely tokens, as no temperature does, and
// at tokens of a probability near 1, which a renormalization does not move.
#include <fmt/format.h>

#include <numeric>

#include "sim/uses/logprobs/causes.h"
#include "sim/uses/logprobs/moments.h"

namespace shardproof::sim::logprobs {
namespace {

constexpr double kFlattest = 0.3, kSteepest = 0.995;
constexpr double kCertain = 0.05;     // -logprob of a token that is almost certain
constexpr double kFewestCertain = 4;  // tokens
constexpr double kHalfOfDrop = 0.5;
constexpr double kFalling = 0.98;  // of the squared difference

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::optional<Claim> judge_line(const Comparison& comparison, const char* smoothed,
                                const char* other) {
  std::vector<double> a, b, predicted;
  for (const Token& token : comparison.pair.tokens) {
    a.push_back(token.a);
    b.push_back(token.b);
  }
  const Moments moments = moments_of(a, b);
  if (moments.variance_x == 0) return std::nullopt;
  const double slope = moments.covariance / moments.variance_x;
  const double drop = slope * mean_of(a) - mean_of(b);
  if (slope < kFlattest || slope > kSteepest || drop <= kMostNoise * comparison.noise) {
    return std::nullopt;
  }
  double certain = 0, dropped = 0, falling = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    predicted.push_back(slope * a[i] - drop);
    certain += a[i] >= -kCertain ? 1 : 0;
    dropped += a[i] >= -kCertain && b[i] <= a[i] - kHalfOfDrop * drop ? 1 : 0;
    falling += b[i] < a[i] ? comparison.differences[i] * comparison.differences[i] : 0;
  }
  if (certain < kFewestCertain || dropped < kLeastShare * certain) return std::nullopt;
  if (falling < kFalling * comparison.squared) return std::nullopt;
  return judge_prediction(
      comparison, predicted,
      {.cause = "smoothed",
       .text = fmt::format(
           "{} is about {:.3g} times {} - {:.3g}, and lower at tokens of a probability near 1 too",
           smoothed, slope, other, drop),
       .likely = fmt::format("{} has the loss of smoothed targets, with label smoothing of about "
                             "{:.2g}; save the logprob of the token itself",
                             smoothed, 1 - slope),
       .description = 2 * kFreeNumber + std::log(2)});
}

}  // namespace

std::optional<Claim> propose_smoothed(const Comparison& comparison) {
  if (auto claim = judge_line(comparison, "B", "A")) return claim;
  const Pair turned = turned_pair(comparison.pair);
  return judge_line(Comparison(turned), "A", "B");
}

}  // namespace shardproof::sim::logprobs
