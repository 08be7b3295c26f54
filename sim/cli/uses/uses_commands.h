// The commands of sim/uses and sim/describe. As those of commands.h they return their exit status
// and throw Error(kBadInput) for errors of the user.
#pragma once

#include "sim/cli/cli.h"

namespace shardproof::sim::cli {

int describe_command(const RunArguments& arguments);
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

// All of them, for run_cli.
UsesCommands uses_commands();

}  // namespace shardproof::sim::cli
