// The one command that runs a case again.
#pragma once

#include <string>

#include "sim/case/case_spec.h"

namespace shardproof::sim {

// "shardproof run FILE --only NAME" for a scenario, "shardproof check FOLDER --mesh .." for a case.
// What the spec does not tell, because it took the place of what the file says (--seed, --steps),
// is for the caller to add.
std::string replay_command(const CaseSpec& spec);

// Quoted for a shell where a character needs it.
std::string shell_word(const std::string& word);

}  // namespace shardproof::sim
