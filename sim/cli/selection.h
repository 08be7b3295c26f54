// Which cases a command is about: files, expanded, filtered, dealt and ordered.
#pragma once

#include <string>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/cli/arguments.h"

namespace shardproof::sim {

struct Selection {
  std::vector<CaseSpec> cases;    // to run, in this order
  std::vector<CaseSpec> skipped;  // selected and not run; the reason is in `skip`
};

// Throws Error(kBadInput): whatever is wrong in any of the files (each file's first problem), a
// path that is no scenario, nothing selected.
Selection select_cases(const RunArguments& arguments);

// The scenario files that `paths` name: files as they are, folders searched for *.yaml, sorted.
std::vector<std::string> find_scenario_files(const std::vector<std::string>& paths);

}  // namespace shardproof::sim
