#include "sim/judge/verdict/first_gradient.h"

#include <cmath>
#include <optional>

namespace shardproof::sim::judge {

double factor_of_first_gradient(const std::vector<RankReport>& reports, int64_t step) {
  constexpr double kClose = 1e-6;
  std::optional<int64_t> first;
  for (const RankReport& report : reports) {
    for (const ResultRow& row : report.rows) {
      const bool is_gradient = row.step == step && row.phase == Phase::kBackward && row.order >= 0;
      if (is_gradient && (!first || row.order < *first)) first = row.order;
    }
  }
  double factor = 0;
  for (const RankReport& report : reports) {
    for (const ResultRow& row : report.rows) {
      if (row.step != step || row.phase != Phase::kBackward || row.order != first) continue;
      const bool is_scaled = row.is_wrong() && row.factor_residual <= kClose;
      const bool fits = factor == 0 || std::fabs(row.factor - factor) <= kClose * std::fabs(factor);
      if (!is_scaled || !fits) return 0;
      factor = row.factor;
    }
  }
  return factor;
}

}  // namespace shardproof::sim::judge
