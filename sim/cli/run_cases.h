// Runs and judges the selected cases, then prints the results and writes the run folder.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/cli/arguments.h"
#include "sim/cli/resume.h"
#include "sim/cli/selection.h"
#include "sim/world/launch/world_pool.h"

namespace shardproof::sim::cli {

// What the user typed.
struct CommandLine {
  std::string text;                // to be shown
  std::vector<std::string> words;  // without the program's name
  std::string program;             // what starts this program again, for hints
};

// Returns the exit status; `finished` gets the results, of unexpected cases with their reports.
// Throws Error(kBadInput): nothing selected, other cases or another
// program than those of `earlier`, a run folder that cannot be made or written.
int run_cases(const RunArguments& arguments, const CommandLine& command, Selection selection,
              world::WorldPool& pool, std::optional<ResumedRun> earlier = std::nullopt,
              std::vector<judge::CaseResult>* finished = nullptr);

}  // namespace shardproof::sim::cli
