// The command line: from argv to an exit status.
#pragma once

#include <vector>

#include "sim/case/scenario/known_workload.h"
#include "sim/world/launch/world_pool.h"

namespace shardproof::sim {

// Runs one command. `functions` is what workers run; `workloads` are those that scenarios may name
// beside train and logprobs. Returns the exit status (docs/running.md).
int run_cli(int argc, char** argv, const WorkerFunctions& functions,
            const std::vector<KnownWorkload>& workloads = {});

}  // namespace shardproof::sim
