// Causes that predict b from a token by token: sign, base of the logarithm, factor, offset.
#include <fmt/format.h>

#include <algorithm>

#include "base/quantile.h"
#include "sim/uses/logprobs/causes.h"
#include "sim/uses/logprobs/moments.h"

namespace shardproof::sim::logprobs {
namespace {

// Where logits are flat, top-p keeps little more than its probability of each token's alternatives.
constexpr double kNearBound = 0.8;
// The most that the factors of the small and the large values differ, as a share of what the factor
// changes.
constexpr double kSameFactor = 0.5;

template <class Function>
std::vector<double> map_tokens(const Comparison& comparison, double Token::*of,
                               const Function& function) {
  std::vector<double> predicted;
  for (const Token& token : comparison.pair.tokens) predicted.push_back(function(token.*of));
  return predicted;
}

template <class Function>
std::vector<double> map_a(const Comparison& comparison, const Function& function) {
  return map_tokens(comparison, &Token::a, function);
}

// Whether the small values and the large ones have the same factor: what is added to the logprobs
// is a larger share of the small ones.
bool is_same_for_all_sizes(const Comparison& comparison, double factor) {
  std::vector<double> sizes, ratios[2];
  for (const Token& token : comparison.pair.tokens) sizes.push_back(std::abs(token.a));
  const double middle = median(std::move(sizes));
  for (const Token& token : comparison.pair.tokens) {
    if (token.a != 0) ratios[std::abs(token.a) > middle].push_back(token.b / token.a / factor);
  }
  if (ratios[0].empty() || ratios[1].empty()) return true;
  return std::abs(median(std::move(ratios[0])) - median(std::move(ratios[1]))) <=
         kSameFactor * std::abs(1 - factor);
}

std::optional<Claim> judge_factor(const Comparison& comparison, double factor, Claim claim) {
  if (!is_same_for_all_sizes(comparison, factor)) return std::nullopt;
  return judge_prediction(comparison, map_a(comparison, [&](double a) { return factor * a; }),
                          std::move(claim));
}

// A fixed factor is claimed only if the factor that fits best is so near to it.
constexpr double kNearFactor = 0.02;

// The factor that makes the weighted sum of |b - factor * a| least.
double best_factor(const Comparison& comparison) {
  std::vector<std::pair<double, double>> ratios;  // b / a with its weight
  double total = 0;
  for (size_t i = 0; i < comparison.pair.tokens.size(); ++i) {
    const Token& token = comparison.pair.tokens[i];
    if (token.a == 0) continue;
    ratios.emplace_back(token.b / token.a, std::abs(token.a) / comparison.weights[i]);
    total += ratios.back().second;
  }
  std::sort(ratios.begin(), ratios.end());
  double sum = 0;
  for (const auto& [ratio, weight] : ratios) {
    sum += weight;
    if (2 * sum >= total) return ratio;
  }
  return 1;
}

bool fits_best(const Comparison& comparison, double factor) {
  return std::abs(best_factor(comparison) / factor - 1) <= kNearFactor;
}

// Whether the factor is that of the metadata's temperatures. At low temperatures the logprobs of
// one are nearly such a factor times those of the other.
bool is_ratio_of_temperatures(const Pair& pair, double factor) {
  const auto &of_a = pair.settings_a.temperature, &of_b = pair.settings_b.temperature;
  return of_a && of_b && *of_a != *of_b && std::abs(std::log(factor * *of_b / *of_a)) <= 0.01;
}

// "; 1.25 is the temperature of A"; "" when the factor is none of the temperatures.
std::string temperature_of_factor(const Pair& pair, double factor) {
  for (const auto& [name, settings] : {std::pair{"A", pair.settings_a}, {"B", pair.settings_b}}) {
    if (!settings.temperature) continue;
    const double t = *settings.temperature;
    for (const double candidate : {t, 1 / t}) {
      if (t == 1 || std::abs(std::log(factor / candidate)) > 0.01) continue;
      return fmt::format("; {} {:g} is the temperature of {}", candidate == t ? "" : "1 /", t,
                         name);
    }
  }
  return "";
}

// "; log(4) is 1.386" for an offset of the logarithm of a small integer.
std::string logarithm_of(double offset) {
  for (int n = 2; n <= 64; ++n) {
    if (std::abs(std::abs(offset) - std::log(n)) < 0.002 * std::log(n)) {
      return fmt::format(", which is {}log({})", offset < 0 ? "-" : "", n);
    }
  }
  return "";
}

// The top_p of the file that is higher, if it allows an offset of this size; else 0.
double top_p_of_offset(const Comparison& comparison, double offset) {
  const Pair& pair = comparison.pair;
  const auto& top_p = (offset > 0 ? pair.settings_b : pair.settings_a).top_p;
  if (!top_p || *top_p >= 1 || *top_p <= 0) return 0;
  const double bound = -std::log(*top_p), size = std::abs(offset);
  const bool fits = size > kNearBound * bound && size <= bound + comparison.noise;
  return fits ? *top_p : 0;
}

// The sum of one file up to each token within rows or segments, or its mean.
std::vector<double> sums_so_far(const std::vector<Token>& tokens, double Token::*of,
                                bool in_segments, bool mean) {
  std::vector<double> out;
  double sum = 0, count = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool begins = i == 0 || tokens[i].row != tokens[i - 1].row ||
                        (in_segments && tokens[i].segment != tokens[i - 1].segment);
    if (begins) sum = count = 0;
    sum += tokens[i].*of;
    ++count;
    out.push_back(mean ? sum / count : sum);
  }
  return out;
}

// Whether what remains behind an offset is more than noise and follows A, as behind a line.
bool leaves_a_line(const Comparison& comparison, double offset) {
  constexpr double kFollows = 0.5;
  std::vector<double> a, remaining;
  for (const Token& token : comparison.pair.tokens) {
    a.push_back(token.a);
    remaining.push_back(token.b - token.a - offset);
  }
  return !comparison.is_noise(remaining) &&
         std::abs(moments_of(a, remaining).correlation()) >= kFollows;
}

// Whether an offset also moves tokens that the lower file gives a probability near 1: a logprob
// that is normalized over fewer tokens rises to 0 and no further.
bool moves_likely_tokens(const Comparison& comparison, double offset) {
  double likely = 0, moved = 0;
  for (const Token& token : comparison.pair.tokens) {
    const double lower = offset > 0 ? token.a : token.b;
    if (lower <= -std::abs(offset) / 2) continue;
    likely += 1;
    moved += (token.b - token.a) / offset >= 0.5 ? 1 : 0;
  }
  return moved >= 0.75 * likely;
}

}  // namespace

std::optional<Claim> propose_sign(const Comparison& comparison) {
  if (!fits_best(comparison, -1)) return std::nullopt;
  return judge_factor(comparison, -1,
                      {.cause = "sign",
                       .text = "B is -A",
                       .likely = "one file has the negative logprob, which is a loss; save the "
                                 "logprob itself in both",
                       .description = std::log(2)});
}

std::optional<Claim> propose_log_base(const Comparison& comparison) {
  std::optional<Claim> best;
  for (const auto& [base, value] : {std::pair{"2", 2.0}, {"10", 10.0}}) {
    for (const bool of_b : {true, false}) {
      const double factor = of_b ? 1 / std::log(value) : std::log(value);
      if (!fits_best(comparison, factor)) continue;
      auto claim = judge_factor(
          comparison, factor,
          {.cause = "log_base",
           .text = fmt::format("B is {:.4f} times A: {} has the logarithm to base {}, the other "
                               "file the natural one",
                               factor, of_b ? "B" : "A", base),
           .likely = fmt::format("log{} was called in place of log", base),
           .description = std::log(4)});
      keep_better(best, std::move(claim));
    }
  }
  return best;
}

std::optional<Claim> propose_factor(const Comparison& comparison) {
  const double factor = best_factor(comparison);
  if (factor <= 0) return std::nullopt;  // propose_sign()
  const Pair& pair = comparison.pair;
  if (is_ratio_of_temperatures(pair, factor)) {
    return judge_factor(
        comparison, factor,
        {.cause = "temperature",
         .text = fmt::format("B is {:.5g} times A at every token, which is the ratio of the "
                             "temperatures: the metadata say {:g} in A and {:g} in B",
                             factor, *pair.settings_a.temperature, *pair.settings_b.temperature),
         .likely = "score both files at the same temperature, and divide the logits by it, not the "
                   "logprobs",
         .description = std::log(4),
         .named_by_metadata = true});
  }
  const std::string meaning = temperature_of_factor(pair, factor);
  return judge_factor(
      comparison, factor,
      {.cause = "factor",
       .text = fmt::format("B is {:.5g} times A at every token{}", factor, meaning),
       .likely =
           "the logprobs were divided by the temperature after log_softmax; divide the logits "
           "before it",
       .description = meaning.empty() ? kFreeNumber : std::log(4),
       .is_fitted = meaning.empty()});
}

std::vector<double> plus_one(std::vector<double> counts) {
  for (double& count : counts) count += 1;
  return counts;
}

std::optional<Claim> propose_mean(const Comparison& comparison) {
  constexpr double kFewTokens = 4;  // the mean over fewer is a factor that means something else
  const std::vector<Token>& tokens = comparison.pair.tokens;
  std::vector<double> counts(comparison.pair.rows);
  for (const Token& token : tokens) counts[token.row] += 1;
  if (*std::max_element(counts.begin(), counts.end()) < kFewTokens) return std::nullopt;
  const std::vector<double> plus_first = plus_one(counts);  // which has no logprob
  const std::vector<double> lengths(comparison.pair.lengths.begin(), comparison.pair.lengths.end());
  const std::pair<const std::vector<double>*, const char*> by[] = {
      {&counts, "the row's scored tokens"},
      {&plus_first, "the row's scored tokens plus 1"},
      {&lengths, "the row's tokens (lengths)"}};
  std::optional<Claim> best;
  for (const bool of_b : {true, false}) {
    for (const auto& [divisors, name] : by) {
      if (divisors->empty()) continue;
      std::vector<double> predicted;
      for (const Token& token : tokens) {
        const double count = (*divisors)[token.row];
        predicted.push_back(of_b ? token.a / count : token.a * count);
      }
      auto claim = judge_prediction(
          comparison, predicted,
          {.cause = "mean_of_row",
           .text = fmt::format("{} is {} divided by the number of {}", of_b ? "B" : "A",
                               of_b ? "A" : "B", name),
           .likely = "a mean over the row was taken of each logprob; save the logprobs themselves",
           .description = std::log(6)});
      keep_better(best, std::move(claim));
    }
  }
  return best;
}

std::optional<Claim> propose_cumulative(const Comparison& comparison) {
  constexpr double kExact = 0.995;  // other means than that so far explain less
  std::optional<Claim> best;
  for (const bool of_b : {true, false}) {
    for (const bool in_segments : {false, true}) {
      if (in_segments && !comparison.pair.has_segments) continue;
      for (const bool mean : {false, true}) {
        auto claim = judge_prediction(
            comparison,
            sums_so_far(comparison.pair.tokens, of_b ? &Token::a : &Token::b, in_segments, mean),
            {.cause = "cumulative",
             .text = fmt::format("{} at each token is the {} of {} up to it within each {}",
                                 of_b ? "B" : "A", mean ? "mean" : "sum", of_b ? "A" : "B",
                                 in_segments ? "segment" : "row"),
             .likely = fmt::format("one file has the {} of the sequence so far; save that of each "
                                   "token",
                                   mean ? "mean logprob" : "logprob"),
             .description = std::log(8)},
            !of_b);
        if (!claim || (mean && !claim->leaves_noise && claim->share < kExact)) continue;
        keep_better(best, std::move(claim));
      }
    }
  }
  return best;
}

std::optional<Claim> propose_probability(const Comparison& comparison) {
  std::optional<Claim> best;
  for (const bool of_b : {true, false}) {
    auto claim = judge_prediction(
        comparison,
        map_tokens(comparison, of_b ? &Token::a : &Token::b, [](double x) { return std::exp(x); }),
        {.cause = "probability",
         .text = fmt::format("{} is exp({})", of_b ? "B" : "A", of_b ? "A" : "B"),
         .likely = "one file has probabilities; save their logarithms",
         .description = std::log(2)},
        !of_b);
    keep_better(best, std::move(claim));
  }
  return best;
}

std::optional<Claim> propose_limit(const Comparison& comparison) {
  constexpr size_t kFewest = 4;  // tokens at the limit, and above it
  std::optional<Claim> best;
  for (const bool of_b : {true, false}) {
    double Token::*const limited = of_b ? &Token::b : &Token::a;
    double Token::*const other = of_b ? &Token::a : &Token::b;
    const std::vector<Token>& tokens = comparison.pair.tokens;
    double limit = 0;
    for (const Token& token : tokens) limit = std::min(limit, token.*limited);
    const auto is_at = [&](const Token& token) { return token.*limited == limit; };
    const auto count = static_cast<size_t>(std::count_if(tokens.begin(), tokens.end(), is_at));
    if (count < kFewest || tokens.size() - count < kFewest) continue;
    std::vector<double> predicted;
    for (const Token& token : tokens) predicted.push_back(std::max(token.*other, limit));
    auto claim = judge_prediction(
        comparison, predicted,
        {.cause = "limit",
         .text = fmt::format("{} is {} where that is above {:.6g}, and {:.6g} at {} tokens",
                             of_b ? "B" : "A", of_b ? "A" : "B", limit, limit, count),
         .likely = "one file limits its logprobs (clamp, nan_to_num, a floor against log(0)); save "
                   "them without",
         .description = kFreeNumber + std::log(2),
         .is_fitted = true},
        !of_b);
    keep_better(best, std::move(claim));
  }
  return best;
}

std::optional<Claim> propose_added(const Comparison& comparison) {
  const std::vector<Token>& tokens = comparison.pair.tokens;
  if (tokens.empty()) return std::nullopt;
  const auto largest = std::max_element(
      tokens.begin(), tokens.end(),
      [](const Token& x, const Token& y) { return std::abs(x.b - x.a) < std::abs(y.b - y.a); });
  const double added = std::exp(largest->b) - std::exp(largest->a);
  if (added == 0 || !(std::abs(added) < 1)) return std::nullopt;
  const bool to_b = added > 0;
  const auto with_added = [&](double x) { return std::log(std::exp(x) + std::abs(added)); };
  return judge_prediction(
      comparison, map_tokens(comparison, to_b ? &Token::a : &Token::b, with_added),
      {.cause = "added",
       .text = fmt::format("{} is log(exp({}) + {:.4g}) at every token", to_b ? "B" : "A",
                           to_b ? "A" : "B", std::abs(added)),
       .likely = "one file takes log(p + eps) of a probability; save log_softmax of the logits",
       .description = kFreeNumber,
       .is_fitted = true},
      !to_b);
}

std::optional<Claim> propose_offset(const Comparison& comparison) {
  const double offset = median(comparison.differences);
  if (!moves_likely_tokens(comparison, offset)) return std::nullopt;
  if (leaves_a_line(comparison, offset)) return std::nullopt;
  const std::vector<double> predicted = map_a(comparison, [&](double a) { return a + offset; });
  if (const double top_p = top_p_of_offset(comparison, offset); top_p > 0) {
    const char* higher = offset > 0 ? "B" : "A";
    return judge_prediction(
        comparison, predicted,
        {.cause = "renormalized",
         .text =
             fmt::format("B is A {} {:.4g} at every token; the top_p of {:g} in {} allows {:.4g}",
                         offset < 0 ? "-" : "+", std::abs(offset), top_p, higher, -std::log(top_p)),
         .likely = fmt::format("{} renormalizes after top-p; compute its logprobs from all logits",
                               higher),
         .description = kFreeNumber,
         .is_fitted = true});
  }
  const std::string meaning = logarithm_of(offset);
  return judge_prediction(
      comparison, predicted,
      {.cause = "offset",
       .text = fmt::format("B is A {} {:.4g} at every token{}", offset < 0 ? "-" : "+",
                           std::abs(offset), meaning),
       .likely = "the logsumexp of one file is off by this constant: a sum over vocabulary shards "
                 "was taken too often or divided by their number, or the maximum was subtracted "
                 "only once",
       .description = meaning.empty() ? kFreeNumber : std::log(126),
       .is_fitted = meaning.empty()});
}

}  // namespace shardproof::sim::logprobs
