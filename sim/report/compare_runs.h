// Compares two runs: finds the first tensor, in the order of execution, whose bits differ.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace shardproof::sim::report {

// A tensor whose bits differ.
struct DifferingTensor {
  std::string title;   // "model.norm.output, forward of step 1"
  std::string where;   // "rank 1" or "ranks 0, 2: 0123.. in A, 4567.. in B"
  std::string amount;  // by how much; "" when the folders do not have what says so
};

// One case that both runs have.
struct CaseComparison {
  std::string name, backend;  // "emulated", or "emulated and gloo" when the runs differ
  int64_t tensors = 0;        // number compared: all that ranks observed, by their bits
  int64_t fed = 0;  // of these, parameters that the optimizer made of the golden's gradients
  std::vector<DifferingTensor> differing;  // in the order of execution
  // Settings of the case that the runs do not share: "other seed: 7 in A, 5 in B".
  std::vector<std::string> settings;
  std::string other;  // why tensors cannot be compared, or other verdicts; the case then differs
  bool by_digests = false;          // a run kept no tensors: what differs are the phases of steps
  std::vector<std::string> record;  // what records its values: of both runs, or of A and of B
  std::string other_seed;  // "7 in A, 5 in B": all numbers are drawn anew, so nothing is compared
  bool differs() const { return !differing.empty() || !other.empty() || !other_seed.empty(); }
};

struct RunComparison {
  std::string program;                      // "": the same one made both runs
  std::vector<CaseComparison> cases;        // in the order of A
  std::vector<std::string> only_a, only_b;  // names of cases that the other run lacks
  bool differs() const;
};

// The results.json of a run's folder; a file is its own.
inline std::string results_file(const std::string& given) {
  return std::filesystem::is_directory(given) ? given + "/results.json" : given;
}

// Matches cases by name and backend, or by name alone when each run has it once; the recorded runs
// of two folders of `judge --out` whatever their names. Throws
// Error(kBadInput) for a folder without results.json, another format, missing digests, when no
// case is in both runs, and when no case in both runs has tensors or another verdict.
RunComparison compare_runs(const std::string& folder_a, const std::string& folder_b);

// Text for people: a line per case, its differences in full, and the totals.
std::string comparison_text(const RunComparison& comparison);

// The same of two files that `run --dump` wrote: "" when both have the same tensors with equal
// values (as float64), else a table of those that differ, or that one file lacks. Throws
// Error(kBadInput) for a file that cannot be read, and for two without a tensor in common.
std::string dump_differences(const std::string& a, const std::string& b);

// By how much the values of two runs differ, from the safetensors files that runs leave.

// Of the elements that two runs have in common.
struct Amount {
  int64_t elements = 0;   // compared
  int64_t differing = 0;  // unequal in value; two NaN are equal
  double absolute = 0;    // the largest |a - b|; infinite where one of them is not finite
  double relative = 0;    // the largest |a - b| / max(|a|, |b|)
  void add(const Amount& other);
};

// "5 of 24 elements differ, at most by 0.0012, relatively by 4e-05"
std::string amount_text(const Amount& amount);

// Of each float64 tensor that both files have with one shape, by its name. Throws Error(kBadInput)
// for a file that cannot be read.
std::map<std::string, Amount> amounts_of_files(const std::string& a, const std::string& b);

}  // namespace shardproof::sim::report
