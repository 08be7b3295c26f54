// run: runs the selected cases on worlds that this program starts.
#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "sim/case/names.h"
#include "sim/cli/commands.h"
#include "sim/cli/outputs.h"
#include "sim/cli/run_cases.h"

namespace shardproof::sim {

namespace {

// A file holds the tensors of one case.
void set_dump(const RunArguments& arguments, Selection& selection) {
  if (selection.cases.size() != 1) {
    throw Error(
        {.kind = ErrorKind::kBadInput,
         .what = fmt::format("--dump writes one case, {} were selected", selection.cases.size()),
         .fix = "choose one with --only, and its world with --backend"});
  }
  CaseSpec& spec = selection.cases.front();
  if (!is_model_workload(spec.workload)) {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = fmt::format("workload {} has no model to dump", spec.workload),
                 .fix = "dump a case that trains or scores one"});
  }
  spec.dump_file = output_file("--dump", arguments.dump, inputs_of(spec), arguments.force);
}

}  // namespace

namespace {

// The arguments that `given` resumes, with what may differ: how fast, and how long.
RunArguments resumed_arguments(const RunArguments& given, const EarlierRun& earlier) {
  std::vector<std::string> words = {"shardproof"};
  words.insert(words.end(), earlier.info.arguments.begin(), earlier.info.arguments.end());
  const ParsedArguments parsed = parse_arguments(words);
  if (!parsed.arguments) {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = fmt::format("the command of the run ({}) is none of this program: {}",
                                     earlier.info.command, parsed.text),
                 .fix = "start a new run instead"});
  }
  RunArguments arguments = parsed.arguments->run;
  arguments.workloads = given.workloads;
  arguments.resume = std::filesystem::absolute(given.resume).lexically_normal().string();
  arguments.jobs = given.jobs;
  arguments.time_budget_s = given.time_budget_s;
  arguments.max_fail = given.max_fail;
  arguments.allow_partial = given.allow_partial;
  return arguments;
}

// From where it was started, so that relative paths are the same.
int resume_run(const RunArguments& given, const CommandLine& command, WorldPool& pool) {
  EarlierRun earlier = read_earlier_run(given.resume);
  const RunArguments arguments = resumed_arguments(given, earlier);
  std::error_code error;
  std::filesystem::current_path(earlier.info.directory, error);
  if (error) {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = fmt::format("the run was started in {}, which cannot be entered: {}",
                                     earlier.info.directory, error.message()),
                 .fix = "start a new run instead"});
  }
  return run_cases(arguments, command, select_cases(arguments), pool, earlier);
}

}  // namespace

int run_command(const RunArguments& arguments, const CommandLine& command, WorldPool& pool) {
  if (!arguments.resume.empty()) return resume_run(arguments, command, pool);
  Selection selection = select_cases(arguments);
  if (!arguments.dump.empty()) set_dump(arguments, selection);
  return run_cases(arguments, command, std::move(selection), pool);
}

}  // namespace shardproof::sim
