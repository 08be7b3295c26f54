// The whole program with the workloads that it is given: `shardproof` itself, and anyone's own.
#pragma once

#include "sim/workload/workloads.h"

namespace shardproof::sim {

// Runs one command of the command line. Scenario files may name these workloads beside `train` and
// `logprobs`. Returns the exit status that main returns.
int run_program(int argc, char** argv, const Workloads& workloads);

}  // namespace shardproof::sim
