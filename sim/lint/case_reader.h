// Reads and checks the cases of scenario files, without LibTorch.
#pragma once

#include <string>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/case/scenario/known_workload.h"

namespace shardproof::sim::lint {

struct ReadOptions {
  std::vector<Backend> backends;  // every file gives the cases of each
  // Whether a file of one expanded case is read for `backends` instead of its own.
  bool replaces_backend = false;
  DeviceKind device = DeviceKind::kCpu;
  std::vector<KnownWorkload> workloads = {};  // besides train, logprobs and policy
};

// Throws one Error(kBadInput) with the problems of all files.
std::vector<CaseSpec> read_cases(const std::vector<std::string>& files, const ReadOptions& options);

// The scenario files that a command line names.

// A path in the repository, relative to the current folder or else to the program; "" when absent.
std::string find_in_repository(const std::string& relative_path);

// The path itself, or the program's own where "scenarios/.." is not in the current folder.
std::string own_scenario(const std::string& path);

// The scenario files of `paths`, sorted: files themselves, and *.yaml below folders. Without paths
// those of the repository. Throws Error(kBadInput) for a path that is not a scenario.
std::vector<std::string> find_scenario_files(const std::vector<std::string>& paths);

// Of `lint`. Prints how many files and cases are right and returns 0. Throws one Error(kBadInput)
// with the errors of all files.
int lint(const std::vector<std::string>& paths, const std::vector<KnownWorkload>& workloads);

}  // namespace shardproof::sim::lint
