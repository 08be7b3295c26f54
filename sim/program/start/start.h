// A program with given workloads and commands.
#pragma once

#include <functional>

#include "sim/cli/cli.h"
#include "sim/uses/proofs/workloads.h"
#include "sim/world/rank/run_rank.h"

namespace shardproof::sim::program {

// What only the whole program has.
struct Uses {
  cli::UsesCommands commands = {};
  // Makes the main of a rank from that which runs cases; nothing: that is it.
  std::function<world::RankMain(const world::RankMain& run_case)> rank_main = {};
};

// Runs one command. Scenario files may name these workloads besides train, logprobs and policy.
// Returns the exit status for main.
int start_program(int argc, char** argv, const proofs::Workloads& workloads, const Uses& uses = {});

// Ends the process at once: flushes output, but destroys no static objects. Destroying LibTorch's
// operator tables alone would take 0.1 s, a tenth of a small judged case.
[[noreturn]] void end_program(int status);

}  // namespace shardproof::sim::program
