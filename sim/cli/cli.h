// The command line: from argv to an exit status.
#pragma once

#include <optional>
#include <vector>

#include "sim/case/scenario/known_workload.h"
#include "sim/cli/run_cases.h"
#include "sim/world/launch/world_pool.h"

namespace shardproof::sim::cli {

using ShrinkUnexpected = void (*)(const std::vector<judge::CaseResult>& results,
                                  const RunArguments& run, world::WorldPool& pool);

// The commands of sim/cli/uses. In shardproof-first all are null: a first verdict need not wait
// until they and their libraries are compiled.
struct UsesCommands {
  int (*describe)(const RunArguments& arguments) = nullptr;
  int (*fuzz)(const Arguments& arguments, const CommandLine& command,
              world::WorldPool& pool) = nullptr;
  std::optional<int> (*judge_files)(const CheckArguments& arguments) = nullptr;
  int (*logprobs)(const LogprobsArguments& arguments) = nullptr;
  int (*shrink)(const Arguments& arguments, world::WorldPool& pool) = nullptr;
  ShrinkUnexpected shrink_unexpected = nullptr;
  int (*validate)(const Arguments& arguments, const CommandLine& command,
                  const world::WorkerFunctions& functions) = nullptr;
};

// Runs one command. Workers run `functions`; scenarios may name `workloads` besides train, logprobs
// and policy. Returns the exit status (docs/running.md): 2 for a command that `uses` lacks.
int run_cli(int argc, char** argv, const world::WorkerFunctions& functions,
            const std::vector<KnownWorkload>& workloads, const UsesCommands& uses);

}  // namespace shardproof::sim::cli
