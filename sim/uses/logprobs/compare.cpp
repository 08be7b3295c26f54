// The table of causes, and the choice among their claims.
#include "sim/uses/logprobs/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/quantile.h"
#include "sim/uses/logprobs/causes.h"

namespace shardproof::sim::logprobs {
namespace {

using Propose = std::optional<Claim> (*)(const Comparison& comparison);

constexpr Propose kCauses[] = {
    propose_sign,
    propose_log_base,
    propose_factor,
    propose_offset,
    propose_shift,
    propose_rows,
    propose_chunks,
    propose_unscored,
    propose_first_tokens,
    propose_padded_rows,
    propose_pack_boundary,
    propose_versions,
    propose_vocabulary_shard,
    propose_token_id,
    propose_replica,
    propose_late_positions,
    propose_context_shard,
    propose_temperature,
    propose_normalization,
};

constexpr double kFew = 0.1;  // of the tokens: "few tokens differ"

double median_size(std::vector<double> differences) {
  for (double& value : differences) value = std::abs(value);
  return median(std::move(differences));
}

Token largest_of(const Comparison& comparison) {
  const auto& differences = comparison.differences;
  const auto largest =
      std::max_element(differences.begin(), differences.end(),
                       [](double a, double b) { return std::abs(a) < std::abs(b); });
  return comparison.pair.tokens[largest - differences.begin()];
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
  const int64_t first = pair.non_finite.front();
  return text + fmt::format(", in {} of {} rows; the first at row {}, position {}", rows.size(),
                            pair.rows, first / pair.length, first % pair.length);
}

std::vector<Claim> best_claims(const Comparison& comparison) {
  std::vector<Claim> claims;
  for (const Propose propose : kCauses) {
    if (auto claim = propose(comparison)) claims.push_back(std::move(*claim));
  }
  std::stable_sort(claims.begin(), claims.end(),
                   [](const Claim& a, const Claim& b) { return a.score() > b.score(); });
  std::set<std::string> named;
  std::erase_if(claims, [&](const Claim& claim) { return !named.insert(claim.cause).second; });
  while (!claims.empty() && claims.back().score() < claims.front().score() - kAsGood) {
    claims.pop_back();
  }
  return claims;
}

// "in rows 3, 7 only"; "" when many rows differ.
std::string wrong_rows(const Comparison& comparison) {
  constexpr size_t kListed = 4;
  std::set<int64_t> rows;
  for (size_t i = 0; i < comparison.differences.size(); ++i) {
    const double size = comparison.size_of(comparison.differences[i], i);
    if (size > kMostNoise * comparison.noise) rows.insert(comparison.pair.tokens[i].row);
  }
  if (rows.empty() || rows.size() > kListed ||
      2 * rows.size() > static_cast<size_t>(comparison.pair.rows))
    return "";
  std::string text;
  for (const int64_t row : rows) text += fmt::format("{}{}", text.empty() ? "" : ", ", row);
  return fmt::format("; those are in row{} {} only", rows.size() > 1 ? "s" : "", text);
}

void describe_without_cause(const Comparison& comparison, Finding& finding) {
  double sum = 0;
  std::vector<double> sizes;
  for (size_t i = 0; i < comparison.differences.size(); ++i) {
    sizes.push_back(comparison.size_of(comparison.differences[i], i));
    sum += sizes.back();
  }
  const double mean = sum / static_cast<double>(comparison.differences.size());
  finding.without_cause = fmt::format(
      "no known cause: the mean difference is {:.2g} of 1 + |logprob|, and noise of {} is at most "
      "{:.2g}; {} of {} tokens differ by more than {:.2g}{}",
      mean, finding.dtype, kMeanNoise * comparison.noise, finding.above_noise, finding.compared,
      kMostNoise * comparison.noise, wrong_rows(comparison));
  // A computation in bfloat16 whose logprobs were saved in a wider dtype.
  const double noise_of_bfloat16 = 2 * 0x1p-7;
  finding.possible =
      finding.above_noise <= kFew * finding.compared && median_size(sizes) <= comparison.noise
          ? "few tokens differ: another kernel or layout with heavier rounding, or a bug that hits "
            "few tokens; compare these tokens' logits"
          : "stale or partly updated weights, other weights, quantization, another attention mask "
            "or position_ids: chosen logprobs alone do not tell these apart; add versions, "
            "segments, lengths, input_ids, or compare the logits of one row";
  if (comparison.noise < noise_of_bfloat16 && mean <= kMeanNoise * noise_of_bfloat16) {
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
                  .non_finite = non_finite_text(pair),
                  .claims = {},
                  .without_cause = {},
                  .possible = {}};
  if (!finding.non_finite.empty()) finding.verdict = Verdict::kDifferent;
  if (pair.tokens.empty()) return finding;
  const Comparison comparison(pair);
  finding.median = median_size(comparison.differences);
  finding.largest = largest_of(comparison);
  if (comparison.squared == 0) return finding;
  finding.above_noise = comparison.count_above_noise();
  finding.claims = best_claims(comparison);
  if (finding.claims.empty() && comparison.is_noise(comparison.differences)) {
    if (finding.verdict == Verdict::kEqual) finding.verdict = Verdict::kNoise;
    return finding;
  }
  finding.verdict = Verdict::kDifferent;
  if (finding.claims.empty()) describe_without_cause(comparison, finding);
  return finding;
}

}  // namespace shardproof::sim::logprobs
