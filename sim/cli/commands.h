// The commands. Each returns its exit status and throws Error(kBadInput) for errors of the user.
#pragma once

#include "sim/cli/arguments.h"
#include "sim/cli/cli.h"
#include "sim/cli/light_commands.h"
#include "sim/cli/run_cases.h"
#include "sim/world/launch/world_pool.h"

namespace shardproof::sim::cli {

// `shrink` gets the results of a run with --shrink.
int run_command(const RunArguments& arguments, const CommandLine& command, world::WorldPool& pool,
                ShrinkUnexpected shrink);
// One process of those that another launcher started: rank 0 runs and judges the cases like `run`
// and returns; the other ranks serve and leave with its status.
int rank_command(const RunArguments& arguments, const CommandLine& command,
                 const world::WorkerFunctions& functions);
int list_command(const RunArguments& arguments);
// Runs one case in the emulated world of this process, without a golden.
int calls_command(const RunArguments& arguments, const world::WorkerFunctions& functions);
int check_command(const CheckArguments& arguments, const CommandLine& command,
                  world::WorldPool& pool);
// With a golden that is computed; sim/cli/uses/file_commands.h has the other forms.
int judge_command(const CheckArguments& arguments, world::WorldPool& pool);
int golden_command(const CheckArguments& arguments, world::WorldPool& pool);
// Returns 0 when all tensors are equal to the bit, 1 otherwise.
int compare_runs_command(const std::string& a, const std::string& b);
int doctor_command();
// Prints the JSON Schema of scenario files, or the workloads that they may name.
int schema_command(const RunArguments& arguments);

}  // namespace shardproof::sim::cli
