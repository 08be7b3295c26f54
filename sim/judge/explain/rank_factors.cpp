// A factor of each rank.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/judge/explain/hypotheses.h"
#include "sim/judge/explain/wording.h"

namespace shardproof::sim::judge {
namespace {

constexpr int64_t kFewestOfRank = 4;  // elements of a rank that show its own factor

struct RankFactor {
  double factor = 1;
  int64_t count = 0;
};

// The factor of each rank; empty when some rank has none, or too few values to show one.
std::map<int64_t, RankFactor> factors_of_ranks(const Rows& wrong, double slack) {
  std::map<int64_t, RankFactor> factors;
  for (const ResultRow* row : wrong) {
    if (!(row->factor_residual <= slack) || row->factor == 0) return {};
    const auto [at, is_new] = factors.emplace(row->rank, RankFactor{row->factor});
    RankFactor& known = at->second;
    if (!(std::fabs(row->factor - known.factor) <= 2 * slack * std::fabs(known.factor))) return {};
    known.count += row->count;
  }
  const bool are_few = std::ranges::any_of(
      factors, [](const auto& one) { return one.second.count < kFewestOfRank; });
  return are_few ? std::map<int64_t, RankFactor>() : factors;
}

}  // namespace

std::optional<Proposal> propose_rank_factors(const Difference& difference) {
  constexpr size_t kListed = 4;
  const double slack = factor_slack(difference.symptoms);
  const auto factors = factors_of_ranks(difference.wrong, slack);
  if (factors.size() < 2) return std::nullopt;
  const double first = factors.begin()->second.factor;
  const bool is_common = std::ranges::all_of(factors, [&](const auto& one) {
    return std::fabs(one.second.factor - first) <= 2 * slack * std::fabs(first);
  });
  if (is_common) return std::nullopt;  // propose_factor
  std::vector<std::string> listed;
  for (const auto& [rank, one] : factors) {
    if (listed.size() == kListed) break;
    listed.push_back(fmt::format("{} on rank {}", factor_text(one.factor), rank));
  }
  return Proposal{
      .pattern = fmt::format("each rank's values are the golden times a factor of that rank: {}{}",
                             fmt::join(listed, ", "), factors.size() > kListed ? " .." : ""),
      .likely =
          "each rank scales by a number of its own, such as its norm (clipping) or its count of "
          "tokens, where one number of all ranks is due",
      .description = kFreeNumber * static_cast<double>(factors.size()),
      .ranks = difference.ranks,
      .share = 1,
      .names_ranks = true};
}

}  // namespace shardproof::sim::judge
