// The whole program with the workloads that it is given: `shardproof` itself, and anyone's own.
#pragma once

#include "sim/proofs/workloads.h"

namespace shardproof::sim {

// Runs one command of the command line. Scenario files may name these workloads beside `train` and
// `logprobs`. Returns the exit status that main returns.
int run_program(int argc, char** argv, const Workloads& workloads);

// Ends the process at once: what was printed is flushed, but nothing that lives until the end is
// destroyed. LibTorch's operator tables alone would take 0.1 s, a tenth of a small judged case.
[[noreturn]] void end_program(int status);

}  // namespace shardproof::sim
