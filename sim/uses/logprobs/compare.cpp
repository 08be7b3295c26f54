// The table of causes, and the choice among their claims.
#include "sim/uses/logprobs/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <ranges>
#include <set>
#include <utility>

#include "base/count_of.h"
#include "base/quantile.h"
#include "sim/uses/logprobs/causes.h"
#include "sim/uses/logprobs/moments.h"

namespace shardproof::sim::logprobs {
namespace {

using Propose = std::optional<Claim> (*)(const Comparison& comparison);

constexpr Propose kCauses[] = {
    propose_sign,           propose_log_base,         propose_factor,        propose_mean,
    propose_cumulative,     propose_probability,      propose_offset,        propose_shift,
    propose_rows,           propose_chunks,           propose_unscored,      propose_first_tokens,
    propose_padded_rows,    propose_attention_scores, propose_pack_boundary, propose_routes,
    propose_versions,       propose_vocabulary_shard, propose_token_id,      propose_replica,
    propose_late_positions, propose_context_shard,    propose_temperature,   propose_normalization,
    propose_rounded,        propose_targets,          propose_limit,         propose_added,
    propose_likeliest,      propose_repeated,         propose_smoothed,
};

constexpr double kFew = 0.1;           // of the tokens: "few tokens differ"
constexpr double kNearlyRight = 0.75;  // of them differ by noise then

double median_size(std::vector<double> differences) {
  for (double& value : differences) value = std::abs(value);
  return median(std::move(differences));
}

Token largest_of(const Comparison& comparison) {
  const auto& differences = comparison.differences;
  const auto largest = std::ranges::max_element(
      differences, [](double a, double b) { return std::abs(a) < std::abs(b); });
  return comparison.pair.tokens[largest - differences.begin()];
}

std::string first_of(const std::vector<int64_t>& indices, const Pair& pair) {
  return fmt::format("the first at row {}, position {}", indices.front() / pair.length,
                     indices.front() % pair.length);
}

std::string non_finite_text(const Pair& pair) {
  if (pair.non_finite.empty()) return "";
  int64_t nan_a = 0, nan_b = 0, inf_a = 0, inf_b = 0;
  std::set<int64_t> rows;
  for (const int64_t i : pair.non_finite) {
    nan_a += std::isnan(pair.a[i]) ? 1 : 0;
    nan_b += std::isnan(pair.b[i]) ? 1 : 0;
    inf_a += std::isinf(pair.a[i]) ? 1 : 0;
    inf_b += std::isinf(pair.b[i]) ? 1 : 0;
    rows.insert(i / pair.length);
  }
  std::string text;
  const auto add = [&](const char* file, int64_t nan, int64_t inf) {
    if (nan + inf == 0) return;
    text += fmt::format("{}{} has {} NaN and {} infinite values", text.empty() ? "" : ", ", file,
                        nan, inf);
  };
  add("A", nan_a, inf_a);
  add("B", nan_b, inf_b);
  return text + fmt::format(", in {} of {} rows; {}", rows.size(), pair.rows,
                            first_of(pair.non_finite, pair));
}

std::string infinite_text(const Pair& pair) {
  if (pair.infinite.empty()) return "";
  return fmt::format("{}, where both are -infinity; {}",
                     count_of(std::ssize(pair.infinite), "token"), first_of(pair.infinite, pair));
}

// "B is 0 everywhere", "A has positive logprobs": what one file holds in place of logprobs. No
// cause but `sign`, `unscored` and `probability` is claimed of such a file.
std::string values_text(const Comparison& comparison) {
  const std::vector<Token>& tokens = comparison.pair.tokens;
  struct File {
    const char* name;
    double Token::*value;
    size_t zero = 0, positive = 0;
    const Token* first = nullptr;  // that is positive
  };
  File files[] = {{"A", &Token::a}, {"B", &Token::b}};
  for (File& file : files) {
    for (const Token& token : tokens) {
      file.zero += token.*file.value == 0 ? 1 : 0;
      if (token.*file.value <= kMostNoise * comparison.noise) continue;
      ++file.positive;
      if (file.first == nullptr) file.first = &token;
    }
  }
  const bool a_is_positive = 2 * files[0].positive > tokens.size(),
             b_is_positive = 2 * files[1].positive > tokens.size();
  for (const File& file : files) {
    if (file.zero == tokens.size()) {
      return fmt::format("{} is 0 everywhere: unscored, at {} tokens that the other file has",
                         file.name, tokens.size());
    }
    // Two files of losses can be compared.
    if (a_is_positive == b_is_positive || 2 * file.positive <= tokens.size()) continue;
    return fmt::format(
        "{} has positive logprobs: {} of {} are above 0, the first at row {}, position {}; it may "
        "hold losses, logits or probabilities, so save log_softmax of the logits at each token",
        file.name, file.positive, tokens.size(), file.first->row, file.first->position);
  }
  return "";
}

// The first wrong token and the lowest wrong position; none where no token differs by more than
// noise and no place is claimed.
void find_first(const Comparison& comparison, Finding& finding) {
  const std::vector<Token>& tokens = comparison.pair.tokens;
  finding.wrong_above = kMostNoise * comparison.noise;
  const PlaceCounts* place = nullptr;
  if (finding.above_noise == 0 && !finding.claims.empty() && finding.claims.front().place) {
    place = &*finding.claims.front().place;
    finding.wrong_above = place->limit;
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    const double size = comparison.size_of(comparison.differences[i], i);
    if (size <= finding.wrong_above || (place != nullptr && place->inside_of[i] == 0)) continue;
    if (!finding.first) {
      finding.first = tokens[i];
      finding.lowest_position = tokens[i].position;
    }
    finding.lowest_position = std::min(finding.lowest_position, tokens[i].position);
  }
}

// `listed` gets what is possible where a claim is not made.
std::vector<Claim> best_claims(const Comparison& comparison, std::string& listed) {
  std::vector<Claim> claims;
  for (const Propose propose : kCauses) {
    auto claim = propose(comparison);
    if (claim && claim->listed.empty()) claims.push_back(std::move(*claim));
    if (claim && !claim->listed.empty()) listed = std::move(claim->listed);
  }
  // Where logits are divided by a small temperature, a factor on logprobs gives the same values,
  // and the metadata tell which of the two it was.
  const auto is_named_temperature = [](const Claim& claim) {
    return claim.cause == "temperature" && claim.named_by_metadata;
  };
  if (std::ranges::any_of(claims, is_named_temperature))
    std::erase_if(claims, [](const Claim& claim) {
      return claim.cause == "factor" || claim.cause == "log_base";
    });
  std::ranges::stable_sort(claims,
                           [](const Claim& a, const Claim& b) { return a.score() > b.score(); });
  std::set<std::string> named;
  std::erase_if(claims, [&](const Claim& claim) { return !named.insert(claim.cause).second; });
  while (!claims.empty() && claims.back().score() < claims.front().score() - kAsGood) {
    claims.pop_back();
  }
  return claims;
}

constexpr size_t kListedRows = 4;

struct RowCount {
  double wrong = 0, tokens = 0;
};

// The rows with a token above noise.
std::map<int64_t, RowCount> wrong_rows(const Comparison& comparison) {
  std::map<int64_t, RowCount> rows;
  for (size_t i = 0; i < comparison.differences.size(); ++i) {
    RowCount& row = rows[comparison.pair.tokens[i].row];
    row.wrong += comparison.is_above_noise(i) ? 1 : 0;
    ++row.tokens;
  }
  std::erase_if(rows, [](const auto& row) { return row.second.wrong == 0; });
  return rows;
}

bool are_few(const std::map<int64_t, RowCount>& rows, const Comparison& comparison) {
  return !rows.empty() && rows.size() <= kListedRows &&
         2 * std::ssize(rows) <= comparison.pair.rows;
}

// "; those are in rows 3, 7 only", "; those are in segments 2, 3 of row 0 only"; "" when many rows
// and many segments differ.
std::string wrong_rows_text(const std::map<int64_t, RowCount>& rows, const Comparison& comparison) {
  const auto plural = [](const auto& numbers) { return numbers.size() > 1 ? "s" : ""; };
  if (rows.size() == 1) {
    std::set<int64_t> segments, all_segments;
    for (size_t i = 0; i < comparison.differences.size(); ++i) {
      const Token& token = comparison.pair.tokens[i];
      if (token.row != rows.begin()->first) continue;
      all_segments.insert(token.segment);
      if (comparison.is_above_noise(i)) segments.insert(token.segment);
    }
    if (segments.size() < all_segments.size()) {
      return fmt::format("; those are in segment{} {} of row {} only", plural(segments),
                         fmt::join(segments, ", "), rows.begin()->first);
    }
  }
  if (!are_few(rows, comparison)) return "";
  return fmt::format("; those are in row{} {} only", plural(rows),
                     fmt::join(std::views::keys(rows), ", "));
}

// What is possible where the tokens above noise are those of a few whole rows; "" where they are
// not.
std::string whole_rows_text(const std::map<int64_t, RowCount>& rows, const Comparison& comparison) {
  constexpr double kThroughout = 0.65;
  const bool throughout = std::ranges::all_of(rows, [](const auto& row) {
    return row.second.tokens > 2 && row.second.wrong >= kThroughout * row.second.tokens;
  });
  if (!throughout || !are_few(rows, comparison)) return "";
  const bool one = rows.size() == 1;
  return fmt::format(
      "row{} {} differ{} throughout, and no other does: other tokens stood before, or the mask, "
      "position_ids or a prefix cache was another one there",
      one ? "" : "s", fmt::join(std::views::keys(rows), ", "), one ? "s" : "");
}

// What the files lack that could tell causes apart.
std::string advice(const Pair& pair) {
  std::vector<std::string> missing;
  if (!pair.has_versions) missing.emplace_back("versions");
  if (!pair.has_segments) missing.emplace_back("segments");
  if (!pair.has_lengths) missing.emplace_back("lengths");
  if (!pair.has_ids) missing.emplace_back("input_ids");
  if (missing.empty()) return "compare the logits of one row";
  return fmt::format("add {}, or compare the logits of one row", fmt::join(missing, ", "));
}

// "the logprobs of A are lower by 10 in the mean and do not follow those of B"; "" where they do.
// Those of other weights of the same model follow, as a token that is hard for one is for the
// other.
std::string unrelated_text(const Comparison& comparison) {
  constexpr double kLeastTokens = 64, kUnrelated = 0.25;
  std::vector<double> a, b;
  double sum = 0;
  for (const Token& token : comparison.pair.tokens) {
    a.push_back(token.a);
    b.push_back(token.b);
    sum += token.b - token.a;
  }
  const double count = static_cast<double>(a.size());
  if (count < kLeastTokens) return "";
  for (const auto& [name, values] : {std::pair("A", &a), std::pair("B", &b)}) {
    const auto [least, most] = std::minmax_element(values->begin(), values->end());
    if (*least < *most) continue;
    return fmt::format(
        "all {:.0f} logprobs of {} are {:.6g}: its file was filled and not computed, or holds a "
        "constant in the place of logprobs",
        count, name, *least);
  }
  const Moments moments = moments_of(a, b);
  const double spread =
      2 * std::sqrt(std::max(moments.variance_x + moments.variance_y, 0.0) / count);
  const double mean = sum / count;
  if (moments.correlation() > kUnrelated || std::abs(mean) < std::max(1.0, 2 * spread)) return "";
  const bool a_is_lower = mean > 0;
  return fmt::format(
      "the logprobs of {0} are lower by {1:.2g} in the mean and do not follow those of {2} (their "
      "correlation is {3:.2g}): {0} may score other tokens (targets that were shifted twice or not "
      "at all, other input_ids) or have weights that were not loaded",
      a_is_lower ? "A" : "B", std::abs(mean), a_is_lower ? "B" : "A", moments.correlation());
}

// Why a pair whose tokens are all within noise is not noise: it does not cancel over them. "" if it
// does. Tokens that were drawn from one side have a mean of half their variance, from roundings.
std::string bias_text(const Comparison& comparison) {
  constexpr double kDeviations = 8, kLeastOfNoise = 0.25;
  const std::vector<double>& all = comparison.differences;
  const double count = static_cast<double>(all.size()),
               mean = std::accumulate(all.begin(), all.end(), 0.0) / count,
               variance = moments_of(all, all).variance_x, deviation = std::sqrt(variance / count);
  const double most = std::max(kLeastOfNoise * comparison.noise, variance);
  if (!(std::abs(mean) > most + kDeviations * deviation)) return "";
  return fmt::format(
      "no known cause: B is A {} {:.3g} in the mean of {:.0f} tokens, where noise of {} cancels to "
      "{:.2g}",
      mean < 0 ? "-" : "+", std::abs(mean), count, comparison.pair.dtype, deviation);
}

void describe_without_cause(const Comparison& comparison, const std::string& listed,
                            Finding& finding) {
  double sum = 0;
  std::vector<double> sizes;
  for (size_t i = 0; i < comparison.differences.size(); ++i) {
    sizes.push_back(comparison.size_of(comparison.differences[i], i));
    sum += sizes.back();
  }
  const std::map<int64_t, RowCount> rows = wrong_rows(comparison);
  const double mean = sum / static_cast<double>(comparison.differences.size());
  finding.without_cause = fmt::format(
      "no known cause: the mean difference is {:.2g} of 1 + |logprob|, and noise of {} is at most "
      "{:.2g}; {} of {} tokens differ by more than {:.2g}{}",
      mean, finding.dtype, kMeanNoise * comparison.noise, finding.above_noise, finding.compared,
      kMostNoise * comparison.noise, wrong_rows_text(rows, comparison));
  // A computation in bfloat16 whose logprobs were saved in a wider dtype.
  const double noise_of_bfloat16 = noise_of(kEpsilonOfBfloat16);
  const bool few = finding.above_noise <= kFew * finding.compared &&
                   quantile(sizes, kNearlyRight) <= kMeanNoise * comparison.noise;
  finding.possible =
      few ? "few tokens differ: another kernel or layout with heavier rounding, or a bug that hits "
            "few tokens; compare these tokens' logits"
          : "stale or partly updated weights, other weights, quantization, another attention mask "
            "or position_ids: chosen logprobs alone do not tell these apart; " +
                advice(comparison.pair);
  if (const std::string whole = few ? whole_rows_text(rows, comparison) : ""; !whole.empty())
    finding.possible = whole;
  if (const std::string extra_key = extra_key_text(comparison); !extra_key.empty())
    finding.possible = extra_key;
  if (const std::string unrelated = unrelated_text(comparison); !unrelated.empty())
    finding.possible = unrelated;
  if (!listed.empty()) finding.possible = listed;
  if (finding.split && finding.split->equal.tokens > 0 && finding.split->equal.is_noise) {
    finding.possible = fmt::format(
        "other routes alone: the {} tokens before any position that was routed elsewhere differ by "
        "noise; replay the routes of one file in the other, and compare again",
        finding.split->equal.tokens);
  }
  const bool may_be_bfloat16 =
      comparison.noise < noise_of_bfloat16 && mean <= kMeanNoise * noise_of_bfloat16;
  if (const std::string rounded = rounded_text(comparison.pair); !rounded.empty()) {
    finding.possible += "; " + rounded +
                        ", so the file was computed in it: compute its log_softmax in float32, or "
                        "name the dtype of the computation in its metadata";
  } else if (may_be_bfloat16) {
    finding.possible +=
        "; a computation in bfloat16 has noise of this size: if that is so, name it "
        "in the metadata dtype";
  }
}

}  // namespace

Finding compare(const Pair& pair) {
  Finding finding{.name = pair.path_a + " and " + pair.path_b,
                  .compared = static_cast<int64_t>(pair.tokens.size()),
                  .dtype = pair.dtype,
                  .values = {},
                  .non_finite = non_finite_text(pair),
                  .left_out = infinite_text(pair),
                  .claims = {},
                  .without_cause = {},
                  .possible = {}};
  finding.routes = pair.routes;
  finding.unread = pair.unread;
  if (!finding.non_finite.empty()) finding.verdict = Verdict::kDifferent;
  if (pair.tokens.empty()) return finding;
  const Comparison comparison(pair);
  if (pair.routes && pair.routes->first) finding.split = split_by_routes(comparison, *pair.routes);
  finding.median = median_size(comparison.differences);
  finding.largest = largest_of(comparison);
  if (finding.largest.a == finding.largest.b) return finding;  // squares of tiny ones are 0
  finding.above_noise = comparison.count_above_noise();
  finding.values = values_text(comparison);
  std::string listed;
  finding.claims = best_claims(comparison, listed);
  if (!finding.values.empty()) {
    std::erase_if(finding.claims, [](const Claim& claim) {
      return claim.cause != "sign" && claim.cause != "unscored" && claim.cause != "probability";
    });
    if (!finding.claims.empty()) finding.values.clear();
  }
  find_first(comparison, finding);
  if (!finding.values.empty()) {
    finding.verdict = Verdict::kDifferent;
    return finding;
  }
  if (finding.claims.empty() && comparison.is_noise(comparison.differences)) {
    finding.without_cause = bias_text(comparison);
    if (!finding.without_cause.empty()) {
      finding.verdict = Verdict::kDifferent;
      finding.possible =
          "entries of the vocabulary that one side counts in its softmax and the other does not (a "
          "padded vocabulary, top-k, top-p), another temperature or weights, all within noise";
      return finding;
    }
    if (finding.verdict == Verdict::kEqual) finding.verdict = Verdict::kNoise;
    return finding;
  }
  finding.verdict = Verdict::kDifferent;
  if (finding.claims.empty()) describe_without_cause(comparison, listed, finding);
  return finding;
}

}  // namespace shardproof::sim::logprobs
