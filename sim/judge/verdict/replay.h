// The command that runs a case again.
#pragma once

#include <string>

#include "sim/case/case_spec.h"

namespace shardproof::sim::judge {

// "shardproof run FILE --only NAME" for a scenario, "shardproof check FOLDER --mesh .." for a case.
// The caller must add the options that replaced values of the file (--seed, --steps), because the
// spec does not hold them.
std::string replay_command(const CaseSpec& spec);

// Quotes the word for a shell where a character needs it.
std::string shell_word(const std::string& word);

}  // namespace shardproof::sim::judge
