// Two runs side by side: the first tensor, in the order of execution, whose bits differ.
#pragma once

#include <string>
#include <vector>

namespace shardproof::sim {

// One case that both runs have.
struct CaseComparison {
  std::string name, backend;  // backend: "emulated", or "emulated and gloo" where the runs differ
  int64_t tensors = 0;        // compared
  int64_t differing = 0;
  std::string first;  // "model.norm.output, forward of step 1"; "" when all are equal
  std::string where;  // "rank 1" or "ranks 0, 2: 0123.. in A, 4567.. in B"
  std::string other;  // why the case cannot be compared tensor by tensor; differs then
  bool differs() const { return differing > 0 || !other.empty(); }
};

struct RunComparison {
  std::vector<CaseComparison> cases;        // in the order of A
  std::vector<std::string> only_a, only_b;  // names of cases that the other run lacks
  bool differs() const;
};

// Cases are the same by name and backend; by name alone where each run has it once.
// Throws Error(kBadInput): a folder without results.json, one of another format, digests that are
// missing, no case in common.
RunComparison compare_runs(const std::string& folder_a, const std::string& folder_b);

// For people: a line per case, what differs in full, and the totals.
std::string comparison_text(const RunComparison& comparison);

}  // namespace shardproof::sim
