// The command line: from argv to an exit status.
#pragma once

#include "sim/launch/world_pool.h"

namespace shardproof::sim {

// Runs one command. `functions` is what workers run. Returns the exit status of design.md
// section 6.
int run_cli(int argc, char** argv, const WorkerFunctions& functions);

}  // namespace shardproof::sim
