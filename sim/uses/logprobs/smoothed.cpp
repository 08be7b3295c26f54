// One file has the logprob of smoothed targets: (1 - eps) times the token's own, plus eps times the
// mean over the vocabulary, which is far below nearly every token that was drawn. So it is nearly a
// line over the other file, it falls at likely and at unlikely tokens, and at tokens of a
// probability near 1, which a renormalization does not move.
#include <fmt/format.h>

#include "sim/uses/logprobs/causes.h"
#include "sim/uses/logprobs/moments.h"

namespace shardproof::sim::logprobs {
namespace {

// Flatter lines are those of very high temperatures, too.
constexpr double kFlattest = 0.5, kSteepest = 0.995;
constexpr double kCertain = 0.05;     // -logprob of a token that is almost certain
constexpr double kFewestCertain = 4;  // tokens
constexpr double kHalfOfDrop = 0.5;
constexpr double kFalling = 0.98;  // of the squared difference

// The line "smoothed = slope * other - drop".
struct Line {
  double slope = 0, drop = 0;
  bool of_b = true;  // B is the smoothed file

  double Token::*smoothed() const { return of_b ? &Token::b : &Token::a; }
  double Token::*other() const { return of_b ? &Token::a : &Token::b; }
};

// Nothing unless likely, unlikely and certain tokens fall.
std::optional<Line> falling_line(const Comparison& comparison, bool of_b) {
  const std::vector<Token>& tokens = comparison.pair.tokens;
  Line line{.of_b = of_b};
  std::vector<double> x, y;
  for (const Token& token : tokens) {
    x.push_back(token.*line.other());
    y.push_back(token.*line.smoothed());
  }
  const Moments moments = moments_of(x, y);
  if (moments.variance_x == 0) return std::nullopt;
  line.slope = moments.covariance / moments.variance_x;
  line.drop = line.slope * moments.mean_x - moments.mean_y;
  if (line.slope < kFlattest || line.slope > kSteepest) return std::nullopt;
  if (line.drop <= kMostNoise * comparison.noise) return std::nullopt;
  double certain = 0, dropped = 0, falling = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    falling += y[i] < x[i] ? comparison.differences[i] * comparison.differences[i] : 0;
    if (x[i] < -kCertain) continue;
    certain += 1;
    dropped += y[i] <= x[i] - kHalfOfDrop * line.drop ? 1 : 0;
  }
  if (certain < kFewestCertain || dropped < kLeastShare * certain) return std::nullopt;
  if (falling < kFalling * comparison.squared) return std::nullopt;
  return line;
}

std::optional<Line> falling_line(const Comparison& comparison) {
  const std::optional<Line> line = falling_line(comparison, true);
  return line ? line : falling_line(comparison, false);
}

}  // namespace

bool falls_as_smoothed(const Comparison& comparison) {
  return falling_line(comparison).has_value();
}

std::optional<Claim> propose_smoothed(const Comparison& comparison) {
  const std::optional<Line> line = falling_line(comparison);
  if (!line) return std::nullopt;
  std::vector<double> predicted;
  for (const Token& token : comparison.pair.tokens) {
    predicted.push_back(line->slope * (token.*line->other()) - line->drop);
  }
  const char *smoothed = line->of_b ? "B" : "A", *other = line->of_b ? "A" : "B";
  const std::string text = fmt::format(
      "{} is about {:.3g} times {} - {:.3g}, and lower at tokens of a probability "
      "near 1 too",
      smoothed, line->slope, other, line->drop);
  const std::string likely = fmt::format(
      "{} has the loss of smoothed targets, with label smoothing of about {:.2g}; save the "
      "logprob of the token itself",
      smoothed, 1 - line->slope);
  auto claim = judge_prediction(comparison, predicted,
                                {.cause = "smoothed",
                                 .text = text,
                                 .likely = likely,
                                 .description = 2 * kFreeNumber + std::log(2),
                                 .is_fitted = true},
                                !line->of_b);
  // The mean over the vocabulary may vary so much that a line explains too little.
  if (!claim) claim = Claim{.cause = "smoothed", .text = text, .listed = text + ": " + likely};
  return claim;
}

}  // namespace shardproof::sim::logprobs
