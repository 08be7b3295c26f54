// The command line: from argv to an exit status.
#pragma once

#include <vector>

#include "sim/case/scenario/known_workload.h"
#include "sim/world/launch/world_pool.h"

namespace shardproof::sim::cli {

// Runs one command. Workers run `functions`; scenarios may name `workloads` besides train, logprobs
// and policy. Returns the exit status (docs/running.md).
int run_cli(int argc, char** argv, const world::WorkerFunctions& functions,
            const std::vector<KnownWorkload>& workloads = {});

}  // namespace shardproof::sim::cli
