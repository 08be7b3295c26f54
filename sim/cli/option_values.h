// Values of options, before the options themselves look at them.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "sim/cli/arguments.h"

namespace shardproof::sim::cli {

// One sentence about the first value among `words` (after the program's and the command's name)
// that no option takes: it is empty, as that of a shell variable without a value is; it is the next
// option; it is NaN, which ranges let through. "" when there is none.
std::string bad_value(const CLI::App& command, const std::vector<std::string>& words);

// Of --shard I/N: sets shard and shard_count.
CLI::Validator shard_text(RunArguments& run);

}  // namespace shardproof::sim::cli
