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

}  // namespace shardproof::sim::lint
