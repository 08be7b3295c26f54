// compare-runs: the first tensor whose bits differ between two runs.
#include <fmt/format.h>

#include <iostream>

#include "base/error.h"
#include "sim/cli/commands.h"
#include "sim/cli/outputs.h"
#include "sim/report/compare_runs.h"

namespace shardproof::sim::cli {

int compare_runs_command(const std::string& a, const std::string& b) {
  if (a.ends_with(".safetensors") != b.ends_with(".safetensors")) {
    throw_bad_input(fmt::format("of {} and {} one is a file of tensors, and one a run", a, b),
                    "name two folders of runs, or two files that --dump wrote");
  }
  require_two(report::results_file(a), report::results_file(b));
  if (a.ends_with(".safetensors") && b.ends_with(".safetensors")) {
    const std::string differences = report::dump_differences(a, b);
    std::cout << (differences.empty() ? "all values are equal\n" : differences);
    return differences.empty() ? 0 : 1;
  }
  const report::RunComparison comparison = report::compare_runs(a, b);
  std::cout << report::comparison_text(comparison);
  return comparison.differs() ? 1 : 0;
}

}  // namespace shardproof::sim::cli
