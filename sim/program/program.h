// The whole program with given workloads: `shardproof` itself, or a program with its own workloads.
#pragma once

#include "sim/uses/proofs/workloads.h"

namespace shardproof::sim::program {

// Runs one command. Scenario files may name these workloads besides train, logprobs and policy.
// Returns the exit status for main.
int run_program(int argc, char** argv, const proofs::Workloads& workloads);

// Ends the process at once: flushes output, but destroys no static objects. Destroying LibTorch's
// operator tables alone would take 0.1 s, a tenth of a small judged case.
[[noreturn]] void end_program(int status);

}  // namespace shardproof::sim::program
