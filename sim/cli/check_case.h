// Makes the case of `check`, `judge` and `golden` from a folder and flags.
#pragma once

#include <string>

#include "sim/case/case_spec.h"
#include "sim/cli/arguments.h"

namespace shardproof::sim::cli {

// Throws Error(kBadInput): as read_case_folder; a mesh that no model could run; an
// output that cannot be written (outputs.h). Error(kRefused): an option that is not supported.
CaseSpec make_check_case(const CheckArguments& arguments);

// Applies the given flags of the option table.
void set_flags(const CheckArguments& arguments, CaseSpec& spec);

// Adds to a replay the flags that replaced values of its file.

// `command` (sim/judge/verdict/replay.h) with those flags; "" stays "". `schedules` replaces the
// count of --schedules; 0: without the flag.
std::string with_replay_flags(const std::string& command, const RunArguments& arguments,
                              int64_t schedules);
std::string with_replay_flags(const std::string& command, const CheckArguments& arguments);

}  // namespace shardproof::sim::cli
