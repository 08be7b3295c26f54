// Of the commands of sim/uses those that read files alone: shardproof-light has them too.
#pragma once

#include <optional>

#include "sim/cli/arguments.h"

namespace shardproof::sim::cli {

// Returns 0 when the files are equal within noise of their dtype, 1 otherwise.
int logprobs_command(const LogprobsArguments& arguments);

// Judges, prints and returns the exit status. Returns nothing for a case folder without --golden,
// whose golden has to be computed. Throws Error(kBadInput) for arguments that do not fit together,
// too.
std::optional<int> judge_files(const CheckArguments& arguments);

}  // namespace shardproof::sim::cli
