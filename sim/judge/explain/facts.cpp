// Certain errors: those that the rank itself reported, and non-finite values.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/judge/explain/hypotheses.h"
#include "sim/judge/explain/wording.h"

namespace shardproof::sim::judge {

std::optional<Proposal> propose_problem(const Difference& difference) {
  std::map<std::string, Rows> by_problem;
  for (const ResultRow* row : difference.wrong) {
    if (!row->problem.empty()) by_problem[row->problem].push_back(row);
  }
  if (by_problem.empty()) return std::nullopt;
  const auto most = std::max_element(
      by_problem.begin(), by_problem.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  Proposal out{.pattern = most->first, .ranks = ranks_of(most->second)};
  if (out.ranks != difference.ranks) out.detail = kOthersDiffer;
  return out;
}

std::optional<Proposal> propose_non_finite(const Difference& difference) {
  Rows rows;
  for (const ResultRow* row : difference.wrong) {
    if (!std::isfinite(row->actual_value)) rows.push_back(row);
  }
  if (rows.empty()) return std::nullopt;
  const std::vector<int64_t> ranks = ranks_of(rows);
  size_t nan = 0, infinite = 0, count = 0;
  for (const Piece* piece : difference.symptoms.pieces) {
    if (!std::binary_search(ranks.begin(), ranks.end(), piece->rank)) continue;
    count += piece->actual.size();
    for (const double value : piece->actual) {
      nan += std::isnan(value);
      infinite += std::isinf(value);
    }
  }
  return Proposal{.pattern = count == 0 ? fmt::format("{}", rows.front()->actual_value)
                                        : fmt::format("{} NaN and {} infinite of {} elements", nan,
                                                      infinite, count),
                  .likely = "an overflow, a division by zero, or memory that was never filled",
                  .ranks = ranks};
}

}  // namespace shardproof::sim::judge
