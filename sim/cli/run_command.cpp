// run: runs the selected cases on worlds that this program starts.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <set>
#include <utility>

#include "base/error.h"
#include "sim/case/names.h"
#include "sim/cli/commands.h"
#include "sim/cli/outputs.h"
#include "sim/cli/run_cases.h"

namespace shardproof::sim::cli {

namespace {

// A file holds the tensors of one case.
void set_dump(const RunArguments& arguments, Selection& selection) {
  if (selection.cases.size() != 1) {
    throw_bad_input(fmt::format("--dump writes one case, {} were selected", selection.cases.size()),
                    "choose one with --only, and its world with --backend");
  }
  CaseSpec& spec = selection.cases.front();
  if (!is_model_workload(spec.workload)) {
    throw_bad_input(fmt::format("workload {} has no model to dump", spec.workload),
                    "dump a case that trains or scores one");
  }
  spec.dump_file = output_file("--dump", arguments.dump, inputs_of(spec), arguments.force);
  require_apart("--dump", spec.dump_file, "--out", arguments.out);
}

// The arguments of the run, with what may differ: how fast, how long, how strict, how it is shown.
RunArguments resumed_arguments(const RunArguments& given, const report::EarlierRun& earlier) {
  std::vector<std::string> words = {"shardproof"};
  words.insert(words.end(), earlier.info.arguments.begin(), earlier.info.arguments.end());
  const ParsedArguments parsed = parse_arguments(words);
  if (!parsed.arguments || parsed.arguments->command != "run") {
    throw_bad_input(
        fmt::format("`{}` made the run, which `run` cannot go on with", earlier.info.command),
        "start a new run instead");
  }
  RunArguments arguments = parsed.arguments->run;
  arguments.workloads = given.workloads;
  arguments.resume = given.resume;
  arguments.jobs = given.jobs;
  arguments.time_budget_s = given.time_budget_s;
  arguments.max_fail = given.max_fail;
  arguments.allow_partial = given.allow_partial;
  arguments.no_skips = arguments.no_skips || given.no_skips;
  arguments.no_unresolved = arguments.no_unresolved || given.no_unresolved;
  arguments.quiet = given.quiet;
  arguments.json_lines = given.json_lines;
  arguments.durations = given.durations;
  if (!given.keep.empty()) arguments.keep = given.keep;
  if (!arguments.rerun_failed.empty()) {  // the run that it names may be another one by now
    std::set<std::string> files;
    for (const auto* cases : {&earlier.selected, &earlier.info.skipped}) {
      for (const CaseSpec& spec : *cases) {
        arguments.names.emplace(spec.name, spec.world.backend);
        files.insert(spec.file);
      }
    }
    if (arguments.paths.empty()) arguments.paths.assign(files.begin(), files.end());
    arguments.rerun_failed.clear();
    arguments.shard = arguments.shard_count = 1;
  }
  return arguments;
}

int run_selected(const RunArguments& arguments, const CommandLine& command, Selection selection,
                 world::WorldPool& pool, ShrinkUnexpected shrink,
                 std::optional<ResumedRun> earlier) {
  if (!arguments.dump.empty()) set_dump(arguments, selection);
  std::vector<judge::CaseResult> results;
  const int status =
      run_cases(arguments, command, std::move(selection), pool, std::move(earlier), &results);
  if (arguments.shrink) shrink(results, arguments, pool);
  return status;
}

// From where it was started, so that relative paths are the same. The folder is locked before it is
// read, and named without links, which another run may move.
int resume_run(RunArguments given, const CommandLine& command, world::WorldPool& pool,
               ShrinkUnexpected shrink) {
  namespace fs = std::filesystem;
  if (!report::holds_journal(given.resume)) report::read_earlier_run(given.resume);  // throws why
  given.resume = fs::canonical(given.resume).string();
  auto files = std::make_unique<report::RunFiles>(given.resume);
  report::EarlierRun earlier = report::read_earlier_run(given.resume);
  const RunArguments arguments = resumed_arguments(given, earlier);
  std::error_code error;
  fs::current_path(earlier.info.directory, error);
  if (error) {
    throw_bad_input(fmt::format("the run was started in {}, which cannot be entered: {}",
                                earlier.info.directory, error.message()),
                    "start a new run instead");
  }
  return run_selected(arguments, command, select_cases(arguments), pool, shrink,
                      ResumedRun{std::move(earlier), std::move(files)});
}

}  // namespace

int run_command(const RunArguments& given, const CommandLine& command, world::WorldPool& pool,
                ShrinkUnexpected shrink) {
  if (!given.resume.empty()) return resume_run(given, command, pool, shrink);
  const RunArguments arguments = as_they_ran(given);
  return run_selected(arguments, command, select_cases(arguments), pool, shrink, std::nullopt);
}

}  // namespace shardproof::sim::cli
