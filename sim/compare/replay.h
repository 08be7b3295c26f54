// The one command that runs a case again.
#pragma once

#include <string>

#include "sim/scenario/case_spec.h"

namespace shardproof::sim {

// "shardproof run FILE --only NAME" for a scenario, "shardproof check FOLDER --mesh .." for a case.
std::string replay_command(const CaseSpec& spec);

}  // namespace shardproof::sim
