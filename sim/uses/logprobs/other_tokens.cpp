// Causes by which tokens are scored as others are: the likeliest token in the place of the chosen
// one, and a penalty on tokens that occurred before.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "sim/uses/logprobs/causes.h"
#include "sim/uses/logprobs/signs.h"
#include "sim/uses/logprobs/throughout.h"

namespace shardproof::sim::logprobs {
namespace {

constexpr double kFittingShare = 0.98;  // of the signs

// Seen from the file that may have the likeliest token's logprobs, the higher ones.
struct Likeliest {
  double right = 0, higher = 0, opposite = 0;  // tokens
  double likely = 0;   // of those that are higher, above a probability of 1/2
  double squared = 0;  // of those that are higher
  // The nats by which the probability of the likeliest token codes which tokens are right, shorter
  // than one share for all does.
  double nats = 0;
  std::vector<double> left;  // differences of tokens that are right; NaN: another one
};

// Two tokens of one context have a probability of at most 1 together. Tokens that were drawn are
// the likeliest with its probability, or oftener where they were drawn at a lower temperature.
Likeliest count_likeliest(const Comparison& comparison, bool of_b, double tolerance) {
  constexpr double kPowers[] = {0.5, 0.75, 1, 1.5};
  Likeliest found;
  double nats_of_power[std::size(kPowers)] = {};
  const auto& tokens = comparison.pair.tokens;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const double higher = of_b ? tokens[i].b : tokens[i].a;
    const double lower = of_b ? tokens[i].a : tokens[i].b;
    const bool is_right = comparison.size_of(comparison.differences[i], i) < kClear * tolerance;
    const double allowed = kClear * tolerance * comparison.weights[i];
    const bool is_higher = higher > lower && std::exp(higher) + std::exp(lower) <= 1 + allowed;
    found.left.push_back(is_right ? comparison.differences[i] : NAN);
    (is_right ? found.right : is_higher ? found.higher : found.opposite) += 1;
    if (!is_right && is_higher) {
      found.squared += comparison.differences[i] * comparison.differences[i];
      found.likely += higher > std::log(kOpen) ? 1 : 0;
    }
    for (size_t k = 0; k < std::size(kPowers); ++k) {
      const double p = std::clamp(std::exp(kPowers[k] * higher), kOutliers, 1 - kOutliers);
      nats_of_power[k] -= std::log(is_right ? p : 1 - p);
    }
  }
  found.nats = bernoulli_nats(found.right, static_cast<double>(tokens.size())) -
               *std::ranges::min_element(nats_of_power);
  return found;
}

std::optional<Claim> judge_likeliest(const Comparison& comparison, bool of_b, double tolerance) {
  const Likeliest found = count_likeliest(comparison, of_b, tolerance);
  const double wrong = found.higher + found.opposite;
  if (found.right == 0 || wrong == 0 || found.higher < kFittingShare * wrong) return std::nullopt;
  // Values that only fill in for improbable tokens are improbable themselves.
  if (found.likely == 0 || found.nats < kChanceNats) return std::nullopt;
  const char *here = of_b ? "B" : "A", *there = of_b ? "A" : "B";
  return Claim{
      .cause = "likeliest_token",
      .text = fmt::format(
          "{} is higher at {:.0f} of {:.0f} wrong tokens, with room for both probabilities, and "
          "{:.0f} tokens are right, the oftener the nearer their probability is to 1",
          here, found.higher, wrong, found.right),
      .likely = fmt::format("{} has the logprob of the likeliest token, and {} that of the chosen "
                            "one; take the entry of the token id, not the first of the top-k",
                            here, there),
      .description = std::log(6.0 * std::size(kTolerances)),
      .gained = found.nats + found.higher * std::log(2 * (1 - kOutliers)) +
                found.opposite * std::log(2 * kOutliers),
      .share = found.squared / comparison.squared,
      .leaves_noise = comparison.is_noise(found.left)};
}

// Whether each position of the batch has an id that stands before in its row or segment, among all
// tokens or among those that count.
std::vector<char> repeated_ids(const Pair& pair, bool counting) {
  std::vector<char> repeated(pair.counts.size(), 0);
  std::set<int64_t> before;
  for (int64_t i = 0; i < std::ssize(repeated); ++i) {
    if (i % pair.length == 0 || pair.segment[i] != pair.segment[i - 1]) before.clear();
    repeated[i] = before.contains(pair.ids[i]) ? 1 : 0;
    if (!counting || pair.counts[i] != 0) before.insert(pair.ids[i]);
  }
  return repeated;
}

// A penalty lowers the tokens that it is on, and raises all others.
std::optional<Claim> judge_repeated(const Comparison& comparison, const std::vector<char>& repeated,
                                    const char* among, bool of_b, double tolerance) {
  const Pair& pair = comparison.pair;
  const auto is_repeated = [&](size_t i) {
    return repeated[pair.at(pair.tokens[i].row, pair.tokens[i].position)] != 0;
  };
  const Signs signs = count_signs(comparison, tolerance, [&](size_t i, double b, double) {
    return (b < pair.tokens[i].a) == (of_b == is_repeated(i));
  });
  if (signs.fitting < kFittingShare * signs.informative()) return std::nullopt;
  double open = 0, lower = 0, others = 0;
  for (size_t i = 0; i < pair.tokens.size(); ++i) {
    others += is_repeated(i) ? 0 : 1;
    if (!is_repeated(i) || std::max(pair.tokens[i].a, pair.tokens[i].b) > std::log(kOpen)) continue;
    open += 1;
    const double size = comparison.size_of(comparison.differences[i], i);
    lower += size >= kClear * tolerance && (comparison.differences[i] < 0) == of_b ? 1 : 0;
  }
  if (others == 0 || lower == 0 || lower < kLeastWrong * open) return std::nullopt;
  return Claim{
      .cause = "repeated_tokens",
      .text = fmt::format(
          "{} is lower at {:.0f} of {:.0f} tokens with likely alternatives whose id occurs earlier "
          "in their {}{}, and {:.0f} of {:.0f} clear differences have that sign there and the "
          "other one elsewhere",
          of_b ? "B" : "A", lower, open, pair.has_segments ? "segment" : "row", among,
          signs.fitting, signs.informative()),
      .likely =
          fmt::format("{} has a penalty on tokens that occurred before (repetition, presence or "
                      "frequency penalty): score both files without; or {} sees less of the "
                      "context, so that tokens which are copied from it are less likely",
                      of_b ? "B" : "A", of_b ? "B" : "A"),
      .description = std::log(4.0 * std::size(kTolerances)),
      .gained = signs.nats(),
      .share = signs.share()};
}

// best_of(), also for files of a wider dtype that do not say that they were computed in bfloat16.
template <class Judge>
std::optional<Claim> best_of_noises(const Comparison& comparison, const Judge& judge) {
  auto claim = best_of(comparison.noise, judge);
  const double coarse = noise_of(kEpsilonOfBfloat16);
  return claim || comparison.noise >= coarse ? claim : best_of(coarse, judge);
}

}  // namespace

std::optional<Claim> propose_likeliest(const Comparison& comparison) {
  return best_of_noises(comparison, [&](bool of_b, double tolerance) {
    return judge_likeliest(comparison, of_b, tolerance);
  });
}

std::optional<Claim> propose_repeated(const Comparison& comparison) {
  const Pair& pair = comparison.pair;
  if (!pair.has_ids) return std::nullopt;
  std::optional<Claim> best;
  const bool all_count = std::ranges::find(pair.counts, 0) == pair.counts.end();
  for (const bool counting : {false, true}) {
    if (counting && all_count) continue;
    const std::vector<char> repeated = repeated_ids(pair, counting);
    const char* among = counting ? ", among the tokens that count" : "";
    auto claim = best_of_noises(comparison, [&](bool of_b, double tolerance) {
      return judge_repeated(comparison, repeated, among, of_b, tolerance);
    });
    keep_better(best, std::move(claim));
  }
  return best;
}

}  // namespace shardproof::sim::logprobs
