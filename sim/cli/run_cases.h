// Runs and judges the selected cases, then prints the results and writes the run folder.
#pragma once

#include <string>

#include "sim/cli/arguments.h"
#include "sim/cli/selection.h"
#include "sim/world/launch/world_pool.h"

namespace shardproof::sim {

// Returns the exit status. Throws Error(kBadInput) without cases or without a run folder.
int run_cases(const RunArguments& arguments, const std::string& command_line, Selection selection,
              WorldPool& pool);

}  // namespace shardproof::sim
