// The options of commands that have a file of their own.
#pragma once

#include "sim/cli/arguments.h"

namespace CLI {
class App;
}

namespace shardproof::sim::cli {

void add_mutant_options(CLI::App& app, MutantArguments& mutants);
// --shrink and --relations of `run`.
void add_schedules(CLI::App& app, RunArguments& run);
void add_explore_flags(CLI::App& app, RunArguments& run);
void add_fuzz_options(CLI::App& app, Arguments& arguments);
void add_shrink_options(CLI::App& app, Arguments& arguments);
void add_judge_options(CLI::App& app, CheckArguments& check);
void add_validate_options(CLI::App& app, Arguments& arguments);

}  // namespace shardproof::sim::cli
