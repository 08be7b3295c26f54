// compare-runs: finds the first tensor whose bits differ between two runs.
#include <iostream>

#include "sim/cli/commands.h"
#include "sim/report/compare_runs.h"

namespace shardproof::sim {

int compare_runs_command(const std::string& a, const std::string& b) {
  const RunComparison comparison = compare_runs(a, b);
  std::cout << comparison_text(comparison);
  return comparison.differs() ? 1 : 0;
}

}  // namespace shardproof::sim
