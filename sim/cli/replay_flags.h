// Adds to a replay the flags that replaced values of its file.
#pragma once

#include <string>

#include "sim/cli/arguments.h"

namespace shardproof::sim {

// `command` (sim/judge/verdict/replay.h) with those flags; "" stays "".
std::string with_replay_flags(const std::string& command, const RunArguments& arguments);
std::string with_replay_flags(const std::string& command, const CheckArguments& arguments);

}  // namespace shardproof::sim
