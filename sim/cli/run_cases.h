// Every selected case, judged; then what happened, in words and as a folder.
#pragma once

#include <string>

#include "sim/cli/arguments.h"
#include "sim/cli/selection.h"
#include "sim/world/launch/world_pool.h"

namespace shardproof::sim {

// Returns the exit status. Throws Error(kBadInput): nothing selected, a run folder that cannot be
// made.
int run_cases(const RunArguments& arguments, const std::string& command_line, Selection selection,
              WorldPool& pool);

}  // namespace shardproof::sim
