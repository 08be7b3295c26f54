// Compares two runs: finds the first tensor, in the order of execution, whose bits differ.
#pragma once

#include <string>
#include <vector>

namespace shardproof::sim {

// One case that both runs have.
struct CaseComparison {
  std::string name, backend;  // "emulated", or "emulated and gloo" when the runs differ
  int64_t tensors = 0;        // number compared
  int64_t differing = 0;
  std::string first;  // "model.norm.output, forward of step 1"; "" when all are equal
  std::string where;  // "rank 1" or "ranks 0, 2: 0123.. in A, 4567.. in B"
  std::string other;  // why tensors cannot be compared; the case then differs
  bool differs() const { return differing > 0 || !other.empty(); }
};

struct RunComparison {
  std::vector<CaseComparison> cases;        // in the order of A
  std::vector<std::string> only_a, only_b;  // names of cases that the other run lacks
  bool differs() const;
};

// Matches cases by name and backend, or by name alone when each run has it once. Throws
// Error(kBadInput) for a folder without results.json, another format, missing digests, and when no
// case is in both runs.
RunComparison compare_runs(const std::string& folder_a, const std::string& folder_b);

// Text for people: a line per case, its differences in full, and the totals.
std::string comparison_text(const RunComparison& comparison);

}  // namespace shardproof::sim
