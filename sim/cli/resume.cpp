#include "sim/cli/resume.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "base/error.h"
#include "sim/cli/version.h"
#include "sim/judge/verdict/schedules.h"

namespace shardproof::sim::cli {

// The folder is locked before it is read, and named without links, which another run may move.
ResumedRun earlier_run(const std::string& folder) {
  if (!report::holds_journal(folder)) report::read_earlier_run(folder);  // throws why
  const std::string resolved = std::filesystem::canonical(folder).string();
  auto files = std::make_unique<report::RunFiles>(resolved);
  return {.folder = resolved, .run = report::read_earlier_run(resolved), .files = std::move(files)};
}

RunArguments resumed_arguments(const RunArguments& given, const ResumedRun& resumed) {
  const report::EarlierRun& earlier = resumed.run;
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
  arguments.resume = resumed.folder;
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

void enter_directory_of(const report::EarlierRun& earlier) {
  std::error_code error;
  std::filesystem::current_path(earlier.info.directory, error);
  if (!error) return;
  throw_bad_input(fmt::format("the run was started in {}, which cannot be entered: {}",
                              earlier.info.directory, error.message()),
                  "start a new run instead");
}

void require_same_cases(const report::EarlierRun& earlier, const std::string& program,
                        const Selection& selection) {
  const std::string fix = "start a new run instead";
  if (earlier.info.version != version_text() || earlier.info.program != program) {
    throw_bad_input(
        fmt::format("another program made the run ({}, digest {}) than this ({}, {})",
                    earlier.info.version, earlier.info.program, version_text(), program),
        fix);
  }
  const size_t count = selection.cases.size();
  if (earlier.selected.size() != count) {
    throw_bad_input(fmt::format("the run had selected {} cases, and its command selects {} now",
                                earlier.selected.size(), count),
                    fix);
  }
  for (size_t place = 0; place < count; ++place) {
    if (report::case_digest(selection.cases[place]) == earlier.digests[place]) continue;
    throw_bad_input(
        fmt::format("the case {} has changed since the run", selection.cases[place].name), fix);
  }
}

std::vector<size_t> finished_of(const report::EarlierRun& earlier) {
  std::set<std::string> again;
  for (size_t place = 0; place < earlier.selected.size(); ++place) {
    const std::string& name = earlier.selected[place].name;
    if (earlier.finished.contains(place) || judge::schedule_of_name(name) == 0) continue;
    again.insert(judge::name_without_schedule(name));
  }
  std::vector<size_t> finished;
  for (const auto& [place, result] : earlier.finished) {
    const std::string& name = earlier.selected[place].name;
    const bool is_one_of = judge::schedule_of_name(name) > 0;
    if (is_one_of && again.contains(judge::name_without_schedule(name))) continue;
    finished.push_back(place);
  }
  return finished;
}

}  // namespace shardproof::sim::cli
