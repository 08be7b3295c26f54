// Makes the case of `check`, `judge` and `golden` from a folder and flags.
#pragma once

#include "sim/case/case_spec.h"
#include "sim/cli/arguments.h"

namespace shardproof::sim::cli {

// Throws Error(kBadInput): as read_case_folder; a mesh that no model could run; an
// output that cannot be written (outputs.h). Error(kRefused): an option that is not supported.
CaseSpec make_check_case(const CheckArguments& arguments);

// Applies the given flags of the option table.
void set_flags(const CheckArguments& arguments, CaseSpec& spec);

}  // namespace shardproof::sim::cli
