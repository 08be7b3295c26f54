// Makes the case of `check`, `judge` and `golden` from a folder and flags.
#pragma once

#include "sim/case/case_spec.h"
#include "sim/cli/arguments.h"

namespace shardproof::sim {

// Throws Error(kBadInput) as read_case_folder does, for a mesh that no model could run, and for a
// dump that cannot be written. Throws Error(kRefused) for an unsupported option.
CaseSpec make_check_case(const CheckArguments& arguments);

// Applies the given flags of the option table.
void set_flags(const CheckArguments& arguments, CaseSpec& spec);

// `path` made absolute; "" stays "". Throws Error(kBadInput), naming `option`, if it is not
// writable.
std::string writable_path(const std::string& option, const std::string& path);

}  // namespace shardproof::sim
