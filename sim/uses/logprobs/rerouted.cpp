// Tokens that were scored from a position with other experts, as the cause.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "sim/uses/logprobs/causes.h"
#include "sim/uses/logprobs/claim.h"
#include "sim/uses/logprobs/routes.h"
#include "sim/uses/logprobs/signs.h"

namespace shardproof::sim::logprobs {
namespace {

constexpr const char* kOtherExperts =
    "one side chose other experts: compare the inputs of the router at the first of them, or "
    "replay the routes of one side in the other";

// The other claims want the tokens from these positions to be wrong throughout. Some are not, where
// the two choices have nearly equal outputs, and more tokens behind them are wrong than elsewhere,
// since their keys and values are other ones. So the tokens before any such position are the ones
// that must be right, and noise; of those that were scored from one, most must be wrong, and of
// those behind one, not half as many. All three are counted in the text.
std::optional<Claim> judge_most(const Comparison& comparison, const std::vector<char>& classes) {
  constexpr size_t kLeastRows = 4;
  constexpr double kMost = 0.5, kLeastRight = 0.95, kMostBehind = 0.5;
  struct Sum {
    double tokens = 0, size = 0, shows = 0, wrong = 0;
  };
  Sum sums[3];  // before any, behind one, scored from one
  std::vector<double> sizes, before(classes.size(), NAN);
  double squared = 0;
  for (size_t i = 0; i < classes.size(); ++i) {
    const double difference = comparison.differences[i];
    Sum& sum = sums[static_cast<size_t>(classes[i])];
    sizes.push_back(comparison.size_of(difference, i));
    sum.tokens += 1;
    sum.size += sizes.back();
    if (classes[i] == 0) before[i] = difference;
    if (classes[i] != 0) squared += difference * difference;
  }
  if (sums[0].tokens == 0 || sums[2].tokens == 0 || !comparison.is_noise(before))
    return std::nullopt;
  const double limit = kLeastContrast * sums[0].size / sums[0].tokens,
               inside = sums[2].size / sums[2].tokens;
  if (inside < limit || inside < comparison.noise || comparison.count_above_noise() == 0)
    return std::nullopt;
  std::set<int64_t> rows;
  for (size_t i = 0; i < classes.size(); ++i) {
    const Token& token = comparison.pair.tokens[i];
    Sum& sum = sums[static_cast<size_t>(classes[i])];
    const bool is_wrong = sizes[i] > limit;
    sum.wrong += is_wrong ? 1 : 0;
    sum.shows += is_wrong || std::abs(token.a) > -std::log(kOpen) ? 1 : 0;
    if (is_wrong && classes[i] == 2) rows.insert(token.row);
  }
  const auto share = [](const Sum& sum) { return sum.wrong / std::max(sum.shows, 1.0); };
  const bool fits = rows.size() >= kLeastRows && share(sums[2]) >= kMost &&
                    share(sums[1]) <= kMostBehind * share(sums[2]) &&
                    sums[0].wrong <= (1 - kLeastRight) * sums[0].tokens;
  if (!fits) return std::nullopt;
  Claim claim{
      .cause = "routes",
      .text = fmt::format(
          "the tokens that were scored from a position with other experts differ most: {:.0f} of "
          "{:.0f} are wrong, which are not all, since two choices may have nearly equal outputs; "
          "of those behind such a position {:.0f} of {:.0f} are wrong, and of those before any "
          "{:.0f} of {:.0f} are right and all within noise (a wrong token differs by more than "
          "{:.2g} of 1 + |logprob|)",
          sums[2].wrong, sums[2].tokens, sums[1].wrong, sums[1].tokens,
          sums[0].tokens - sums[0].wrong, sums[0].tokens, limit),
      .likely = kOtherExperts,
      .description = std::log(2.0)};
  claim.gained = comparison.nats - fit_mixture(sizes, classes, comparison.floor).nats;
  claim.share = squared / comparison.squared;
  claim.leaves_noise = true;
  return may_be_claimed(claim) ? std::optional(claim) : std::nullopt;
}

}  // namespace

std::optional<Claim> propose_routes(const Comparison& comparison) {
  if (!comparison.pair.routes || !comparison.pair.routes->first) return std::nullopt;
  const Routes& routes = *comparison.pair.routes;
  const std::vector<char> classes = classes_of_tokens(comparison, routes);
  std::optional<Claim> best;
  for (const char least : {char{2}, char{1}}) {
    std::vector<char> inside;
    for (const char one : classes) inside.push_back(one >= least ? 1 : 0);
    Claim claim{
        .cause = "routes",
        .text = least == 2
                    ? "only tokens that were scored from a position with other experts differ"
                    : "only tokens from a position with other experts on differ",
        .likely = kOtherExperts,
        .description = std::log(2.0)};
    claim.splits_each_unit = least == 1;
    auto judged = judge_place(comparison, inside, std::move(claim));
    if (judged && (!best || judged->score() > best->score())) best = std::move(judged);
  }
  return best ? best : judge_most(comparison, classes);
}

}  // namespace shardproof::sim::logprobs
