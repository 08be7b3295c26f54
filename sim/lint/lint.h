// lint: checks scenario files without running them, and without LibTorch.
#pragma once

#include <string>
#include <vector>

#include "sim/case/scenario/known_workload.h"

namespace shardproof::sim::lint {

// Prints how many files and cases are right and returns 0. Throws one Error(kBadInput) with the
// errors of all files.
int lint(const std::vector<std::string>& paths, const std::vector<KnownWorkload>& workloads);

}  // namespace shardproof::sim::lint
