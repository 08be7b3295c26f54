// Adds to a replay the flags that replaced values of its file.
#pragma once

#include <string>

#include "sim/cli/arguments.h"

namespace shardproof::sim::cli {

// `command` (sim/judge/verdict/replay.h) with those flags; "" stays "". `schedules` replaces the
// count of --schedules; 0: without the flag.
std::string with_replay_flags(const std::string& command, const RunArguments& arguments,
                              int64_t schedules);
std::string with_replay_flags(const std::string& command, const CheckArguments& arguments);

}  // namespace shardproof::sim::cli
