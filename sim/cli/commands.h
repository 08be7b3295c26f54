// The commands. Each returns its exit status and throws Error(kBadInput) for errors of the user.
#pragma once

#include "sim/cli/arguments.h"
#include "sim/cli/light_commands.h"
#include "sim/cli/run_cases.h"
#include "sim/world/launch/world_pool.h"

namespace shardproof::sim::cli {

int run_command(const RunArguments& arguments, const CommandLine& command, world::WorldPool& pool);
// One process of those that another launcher started: rank 0 runs and judges the cases like `run`
// and returns; the other ranks serve and leave with its status.
int rank_command(const RunArguments& arguments, const CommandLine& command,
                 const world::WorkerFunctions& functions);
// Draws cases, runs them, and writes which values and pairs of values have run.
int fuzz_command(const Arguments& arguments, const CommandLine& command, world::WorldPool& pool);
// Writes the smallest case that fails in the same way, and returns 0; 2 when the case matches.
int shrink_command(const Arguments& arguments, world::WorldPool& pool);
// run --shrink: the same for one case of each way in which these failed.
void shrink_unexpected(const std::vector<judge::CaseResult>& results, const RunArguments& run,
                       world::WorldPool& pool);
// Checks hosts and links (docs/validate.md) and returns the exit status. Of a launcher's processes
// that of rank 0 returns, as in rank_command.
int validate_command(const Arguments& arguments, const CommandLine& command,
                     const world::WorkerFunctions& functions);
int list_command(const RunArguments& arguments);
int describe_command(const RunArguments& arguments);
// Runs one case in the emulated world of this process, without a golden.
int calls_command(const RunArguments& arguments, const world::WorkerFunctions& functions);
int check_command(const CheckArguments& arguments, const CommandLine& command,
                  world::WorldPool& pool);
// With a golden that is computed; light_commands.h has the other forms.
int judge_command(const CheckArguments& arguments, world::WorldPool& pool);
int golden_command(const CheckArguments& arguments, world::WorldPool& pool);
// Returns 0 when all tensors are equal to the bit, 1 otherwise.
int compare_runs_command(const std::string& a, const std::string& b);
int doctor_command();
// Prints the JSON Schema of scenario files, or the workloads that they may name.
int schema_command(const RunArguments& arguments);

}  // namespace shardproof::sim::cli
