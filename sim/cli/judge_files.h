// judge, where everything is in files: recorded runs, and the answers of a case.
#pragma once

#include <optional>

#include "sim/cli/arguments.h"

namespace shardproof::sim::cli {

// Judges, prints and returns the exit status. Returns nothing for a case folder without --golden,
// whose golden has to be computed. Throws Error(kBadInput) for arguments that do not fit together,
// too.
std::optional<int> judge_files(const CheckArguments& arguments);

}  // namespace shardproof::sim::cli
