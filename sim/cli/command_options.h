// The options of commands that have a file of their own.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "sim/cli/arguments.h"

namespace shardproof::sim::cli {

void add_mutant_options(CLI::App& app, MutantArguments& mutants);
// --shrink and --relations of `run`.
void add_schedules(CLI::App& app, RunArguments& run);
void add_explore_flags(CLI::App& app, RunArguments& run);
void add_fuzz_options(CLI::App& app, Arguments& arguments);
void add_shrink_options(CLI::App& app, Arguments& arguments);
void add_judge_options(CLI::App& app, CheckArguments& check);
void add_validate_options(CLI::App& app, Arguments& arguments);

// Values of options, before the options themselves look at them.

// One sentence about the first value among `words` (after the program's and the command's name)
// that no option takes: it is empty, as that of a shell variable without a value is; it is the next
// option; it is NaN, which ranges let through. "" when there is none.
std::string bad_value(const CLI::App& command, const std::vector<std::string>& words);

// Of --shard I/N: sets shard and shard_count.
CLI::Validator shard_text(RunArguments& run);

// What `shardproof --help` says besides each command's own line.

// The heading under which --help lists this command.
std::string group_of(const std::string& command, const CommandNames& here);

// The end of --help: some commands to begin with, and the exit statuses.
std::string examples_and_statuses(const CommandNames& here);

}  // namespace shardproof::sim::cli
