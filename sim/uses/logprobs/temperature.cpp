// The same logits at two temperatures.
//
// Let p be the probability of the chosen token in A, q = 1 - p, and alpha the ratio of the
// temperature of A to that of B. Then
//
//   B = alpha * A - log(S)    with S = the sum over the vocabulary of p_v^alpha
//
// The chosen token alone does not give S, since it depends on how q is spread over the other V - 1
// tokens. It is bounded: all of q on one token gives p^alpha + q^alpha, an even spread gives
// p^alpha + (V - 1)^(1 - alpha) q^alpha. So each token bounds alpha, and a file bounds it well,
// most of all tokens with one likely alternative. If tokens were drawn from a policy between both
// temperatures, then B - A has the mean 0 in each context, and alpha follows from the
// covariance of B - A with (A + B) / 2:
//
//   Var(B - A) / Cov(B - A, (A + B) / 2) = 2 (alpha - 1) / (alpha + 1)
//
// At the right alpha H = (B - A) / (alpha - 1) - A = -log(S) / (alpha - 1) is the same for all
// tokens of a context. Of tokens with the same H the mean of B - A is then between -D(A|B) and
// D(B|A) if they were drawn from a policy between both, and on one side of this if they are
// likelier or less likely than those. A soft cap of the logits, c tanh(z / c), moves likely tokens
// by a larger share than others: the means are below it for some H, and above it for others.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "sim/uses/logprobs/causes.h"
#include "sim/uses/logprobs/moments.h"
#include "sim/uses/logprobs/signs.h"

namespace shardproof::sim::logprobs {
namespace {

constexpr double kMostRatio = 5;
constexpr size_t kMostTokens = 16384;  // that are looked at for each ratio
constexpr int kSteps = 160;            // of log(alpha) to either side
constexpr double kUnknownVocabulary = 262144;
constexpr double kAlmostCertain = 0.01;  // -logprob
// The share of open tokens that may keep their logprob: the entropy of their context is near it.
constexpr double kStillNearEntropy = 0.25;
constexpr double kFittingSigns = 0.97;  // of the informative signs must fit

struct Bounds {
  double low, high;
};

// The least and the largest B of a token whose logprob in A is exactly `a`.
Bounds exact_bounds_of(double a, double alpha, double vocab_size) {
  const double chosen = alpha * std::min(a, 0.0);
  const double rest = std::pow(std::max(-std::expm1(std::min(a, 0.0)), 0.0), alpha);
  const double p = std::exp(chosen);
  const double one = chosen - std::log(p + rest);
  const double even = chosen - std::log(p + std::pow(vocab_size - 1, 1 - alpha) * rest);
  return {std::min(one, even), std::max(one, even)};
}

// The same where `a` may be off by `allowed`: 1 - p of a token that is almost certain is mostly
// rounding, and another temperature may raise it a lot.
Bounds bounds_of(double a, double alpha, double vocab_size, double allowed) {
  const Bounds bounds = exact_bounds_of(a, alpha, vocab_size);
  if (a < -kAlmostCertain) return bounds;
  const Bounds other = exact_bounds_of(a - allowed, alpha, vocab_size);
  return {std::min(bounds.low, other.low), std::max(bounds.high, other.high)};
}

struct Fit {
  double alpha = 1, tolerance = 0;
  Signs signs;
};

// What the temperatures of the metadata say, as alpha.
struct Candidate {
  double alpha;
  std::string text, likely;
};

std::vector<Candidate> candidates_of(const Pair& pair) {
  std::vector<Candidate> candidates;
  const auto& a = pair.settings_a.temperature;
  const auto& b = pair.settings_b.temperature;
  if (a && b && *a != *b) {
    candidates.push_back({*a / *b, fmt::format("the metadata say {:g} in A and {:g} in B", *a, *b),
                          "score both files at the same temperature"});
  }
  // The other file names none, and was not divided by one.
  for (const auto& [name, other, own, alpha] :
       {std::tuple{"A", "B", a, a.value_or(1)}, {"B", "A", b, 1 / b.value_or(1)}}) {
    if (!own || *own == 1 || (a && b)) continue;
    candidates.push_back(
        {alpha, fmt::format("the metadata say {:g} in {} and none in {}", *own, name, other),
         "score both files at the same temperature"});
  }
  for (const auto& [name, other, own, alpha] :
       {std::tuple{"B", "A", b, b.value_or(1)}, {"A", "B", a, 1 / a.value_or(1)}}) {
    if (!own || *own == 1) continue;
    const bool of_both = a && b && *a == *b;  // then the ratio does not tell which one is right
    candidates.push_back(
        {alpha,
         fmt::format(
             "the temperature of the metadata is {:g}, and {} was computed from logits that "
             "were not divided by it{}",
             *own, name, of_both ? fmt::format(", or {} from logits divided twice", other) : ""),
         fmt::format("divide the logits of {} by the temperature {}before log_softmax",
                     of_both ? "each file" : name, of_both ? "once " : "")});
  }
  return candidates;
}

class TemperatureFit {
 public:
  // Tries the ratios of the metadata, too.
  TemperatureFit(const Comparison& comparison, const std::vector<Candidate>& candidates)
      : comparison_(comparison) {
    std::vector<double> ratios;
    for (int step = -kSteps; step <= kSteps; ++step) {
      if (step != 0) ratios.push_back(std::exp(std::log(kMostRatio) * step / kSteps));
    }
    for (const Candidate& candidate : candidates) ratios.push_back(candidate.alpha);
    const int64_t known = std::max(comparison.pair.vocab_size, int64_t{0});
    vocab_size_ = known > 0 ? static_cast<double>(known) : kUnknownVocabulary;
    for (const double share : kTolerances) {
      for (const double alpha : ratios) {
        fits_.push_back({.alpha = alpha,
                         .tolerance = share * comparison.noise,
                         .signs = signs_at(alpha, share * comparison.noise)});
      }
    }
    // A ratio of the metadata is one of few alternatives.
    const auto value = [&](const Fit& fit) {
      const bool is_named = std::ranges::any_of(
          candidates, [&](const Candidate& candidate) { return candidate.alpha == fit.alpha; });
      return fit.signs.nats() + (is_named ? std::log(2.0 * kSteps) : 0);
    };
    // A ratio that explains too little hides none that may be claimed.
    const auto rank = [&](const Fit& fit) {
      return std::pair(share_at(fit.alpha) >= kLeastShare, value(fit));
    };
    best_ = *std::ranges::max_element(
        fits_, [&](const Fit& a, const Fit& b) { return rank(a) < rank(b); });
    // What the noise of the dtype allows, whichever tolerance fits best.
    range_ = {best_.alpha, best_.alpha};
    for (const Fit& fit : fits_) {
      const bool widest =
          fit.tolerance == kTolerances[std::size(kTolerances) - 1] * comparison.noise;
      if (!widest || fit.signs.opposite > kOutliers * fit.signs.clear()) continue;
      range_ = {std::min(range_.low, fit.alpha), std::max(range_.high, fit.alpha)};
    }
  }

  const Fit& best() const { return best_; }
  const Bounds& range() const { return range_; }  // of alpha
  // Of the squared difference: a token is explained if it is off by noise of the dtype, though the
  // signs fit best with a smaller tolerance.
  double share() const { return share_at(best_.alpha); }

  // The estimate by the covariance, where it is in the range; else the middle of the range.
  double estimate() const {
    std::vector<double> middles;
    for (const Token& token : comparison_.pair.tokens) middles.push_back((token.a + token.b) / 2);
    const Moments moments = moments_of(comparison_.differences, middles);
    const double ratio = moments.variance_x / moments.covariance;
    const double alpha = (2 + ratio) / (2 - ratio);
    const bool inside = range_.low <= alpha && alpha <= range_.high;
    return inside ? alpha : std::sqrt(range_.low * range_.high);
  }

 private:
  double share_at(double alpha) const {
    double most = 0;
    for (const Fit& fit : fits_) {
      if (fit.alpha == alpha) most = std::max(most, fit.signs.share());
    }
    return most;
  }

  Signs signs_at(double alpha, double tolerance) const {
    const auto& tokens = comparison_.pair.tokens;
    const size_t step = 1 + tokens.size() / kMostTokens;
    const auto possible = [&](size_t i, double b, double allowed) {
      const Bounds bounds = bounds_of(tokens[i].a, alpha, vocab_size_, allowed);
      return bounds.low - allowed <= b && b <= bounds.high + allowed;
    };
    Signs signs = count_signs(comparison_, tolerance, possible, step);
    // The unchanged tokens count only if the signs do not rule this cause out.
    if (signs.nats() > kChanceNats)
      signs.still = count_still(comparison_, tolerance, possible, step);
    return signs;
  }

  const Comparison& comparison_;
  double vocab_size_ = 0;
  std::vector<Fit> fits_;
  Fit best_;
  Bounds range_{};
};

// What B - A says of the tokens with like H, where it is more than chance does in one of 1000
// files.
struct Contradictions {
  double low = 0, high = 0;  // means that are below and above what a temperature allows; 0: none is
  double least = 1;          // of the means of exp(B - A) and exp(A - B)

  // Drawn from either policy or one between, both of these means are at least 1.
  bool is_not_drawn() const { return least < 0.5; }
};

Contradictions contradictions_of(const Comparison& comparison, double alpha) {
  constexpr size_t kParts = 8;
  const double deviations = std::sqrt(2 * (kChanceNats + std::log(2.0 * kParts)));
  const auto& tokens = comparison.pair.tokens;
  const auto& differences = comparison.differences;
  std::vector<size_t> order(tokens.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto entropy = [&](size_t i) { return differences[i] / (alpha - 1) - tokens[i].a; };
  std::ranges::sort(order, [&](size_t i, size_t k) { return entropy(i) < entropy(k); });
  Contradictions found;
  for (size_t part = 0; part < kParts; ++part) {
    const size_t begin = part * order.size() / kParts, end = (part + 1) * order.size() / kParts;
    const double n = static_cast<double>(end - begin);
    if (n < 2) continue;
    // The mean of function(B - A) and its variance.
    const auto moments = [&](const auto& function) {
      double sum = 0, squares = 0;
      for (size_t k = begin; k < end; ++k) {
        const double value = function(differences[order[k]]);
        sum += value;
        squares += value * value;
      }
      return std::pair(sum / n, std::max(squares / n - sum / n * (sum / n), 0.0));
    };
    const auto [mean, variance] = moments([](double d) { return d; });
    // D(A|B) and D(B|A) are about half the variance.
    const double allowed = variance / 2 + deviations * std::sqrt(variance / n);
    if (mean < -allowed) found.low = std::min(found.low, mean);
    if (mean > allowed) found.high = std::max(found.high, mean);
    for (const double sign : {1.0, -1.0}) {
      const auto [ratio, spread] = moments([&](double d) { return std::exp(sign * d); });
      found.least = std::min(found.least, ratio + deviations * std::sqrt(spread / n));
    }
  }
  return found;
}

// Why no temperature is claimed though the signs are those of one; "" if it may be.
std::string contradiction_text(const Comparison& comparison, double alpha) {
  const Contradictions found = contradictions_of(comparison, alpha);
  const std::string cap = fmt::format(
      "one file caps its logits, c tanh(logit / c), and the other does not or otherwise: the signs "
      "are "
      "those of a temperature about {:.3g} times as high",
      1 / alpha);
  const char* fix = "; compare the logits of one row";
  if (found.low < 0 && found.high > 0) {
    return fmt::format(
        "{}, which no ratio fits, since B - A has the mean {:.2g} in some contexts and {:.2g} in "
        "others, where drawn tokens have about 0{}",
        cap, found.low, found.high, fix);
  }
  if (!found.is_not_drawn()) return "";
  return fmt::format(
      "{}, from neither of which the tokens of some contexts were drawn: the mean ratio of their "
      "probabilities is {:.2g}, and would be 1 or more; or it is a temperature, and the tokens "
      "were "
      "drawn at a lower one, by top-p, or not at all{}",
      cap, found.least, fix);
}

// Whether all tokens that differ by more than noise differ in one direction.
bool moves_one_way(const Comparison& comparison) {
  constexpr double kFew = 0.01;
  double up = 0, down = 0;
  for (size_t i = 0; i < comparison.differences.size(); ++i) {
    if (comparison.size_of(comparison.differences[i], i) <= comparison.noise) continue;
    (comparison.differences[i] > 0 ? up : down) += 1;
  }
  return std::min(up, down) <= kFew * std::max(up, down);
}

std::string range_text(const Bounds& alpha) {
  return fmt::format("between {:.3g} and {:.3g}", 1 / alpha.high, 1 / alpha.low);
}

}  // namespace

std::optional<Claim> propose_temperature(const Comparison& comparison) {
  if (comparison.differences.empty()) return std::nullopt;
  const std::vector<Candidate> candidates = candidates_of(comparison.pair);
  const TemperatureFit fit(comparison, candidates);
  const Signs& signs = fit.best().signs;
  if (signs.fitting < kFittingSigns * signs.informative()) return std::nullopt;
  const auto& tokens = comparison.pair.tokens;
  const double lost = nats_of_still_tokens(
      comparison, fit.best().tolerance, kStillNearEntropy, [&](size_t i) { return tokens[i].a; },
      [&](size_t i) { return std::abs(comparison.differences[i]); });
  Claim claim{.cause = "temperature",
              .text = "",
              .description = std::log(2.0 * kSteps * std::size(kTolerances)),
              .gained = signs.nats() - lost,
              .share = fit.share()};
  if (claim.share < kLeastShare || claim.chance_nats() < kChanceNats) return std::nullopt;
  const double ratio = 1 / fit.estimate();
  claim.text = fmt::format(
      "B is A at a temperature about {:.3g} times as high: all but {:.0f} of {:.0f} signs are as "
      "the "
      "bounds of a temperature demand, and the bounds leave {}",
      ratio, signs.opposite, signs.informative(), range_text(fit.range()));
  claim.likely =
      "one file divides the logits by a temperature and the other by none or another (a soft cap "
      "of the logits that one file lacks looks the same); the estimate holds for tokens that were "
      "drawn from either policy";
  for (const Candidate& candidate : candidates) {
    if (candidate.alpha < fit.range().low * 0.98 || candidate.alpha > fit.range().high * 1.02)
      continue;
    claim.text += "; " + candidate.text;
    claim.likely = candidate.likely;
    claim.named_by_metadata = true;
    break;
  }
  // A temperature is higher or lower, and moves some tokens up and others down. Top-k and the like,
  // within noise, look like either, and move all of them up.
  const bool is_either = fit.range().low < 1 && fit.range().high > 1;
  if (is_either && !claim.named_by_metadata && moves_one_way(comparison)) return std::nullopt;
  if (!claim.named_by_metadata) claim.listed = contradiction_text(comparison, fit.estimate());
  return claim;
}

}  // namespace shardproof::sim::logprobs
