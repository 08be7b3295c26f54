#include "sim/cli/run_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/program_digest.h"
#include "sim/case/names.h"
#include "sim/cli/check_case.h"
#include "sim/cli/commands.h"
#include "sim/cli/machine.h"
#include "sim/cli/outputs.h"
#include "sim/cli/version.h"
#include "sim/report/color.h"
#include "sim/report/results_json.h"
#include "sim/report/run_folder.h"
#include "sim/report/summary.h"
#include "sim/uses/relations/relations.h"
#include "sim/uses/runs/case_runs.h"

namespace shardproof::sim::cli {

namespace {

constexpr int kInterrupted = 130;
constexpr int kBadInput = 2;

constexpr size_t kFewCases = 50;  // a run of no more keeps all of each

int status_of(const std::vector<judge::CaseResult>& results, const report::RunInfo& info,
              const RunArguments& arguments) {
  if (info.interrupted) return kInterrupted;
  const int status = judge::exit_status(results, arguments.no_unresolved);
  const bool skipped_counts = arguments.no_skips && !info.skipped.empty();
  if (skipped_counts && status != 5) return kBadInput;
  const bool partial = !info.not_run.empty() && !arguments.allow_partial;
  return status == 0 && partial ? kBadInput : status;
}

// The files and folders that a run reads: its results must not take their place.
std::vector<std::filesystem::path> inputs_of_run(const RunArguments& arguments) {
  std::vector<std::filesystem::path> inputs(arguments.paths.begin(), arguments.paths.end());
  if (!arguments.rerun_failed.empty()) inputs.emplace_back(arguments.rerun_failed);
  return inputs;
}

void require_room(const RunArguments& arguments, const Selection& selection,
                  const std::string& folder) {
  double bytes = 0;
  for (const CaseSpec& spec : selection.cases) bytes += run::report_bytes(spec);
  run::check_room("--out", folder, bytes);
  if (arguments.dump.empty()) return;
  const CaseSpec& spec = selection.cases.front();
  run::check_room("--dump", std::filesystem::path(spec.dump_file).parent_path().string(),
                  run::dump_bytes(spec));
}

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

}  // namespace

int run_cases(const RunArguments& arguments, const CommandLine& command, Selection selection,
              world::WorldPool& pool, std::optional<ResumedRun> earlier,
              std::vector<judge::CaseResult>* finished) {
  // An empty share has its files too, which a page of all shares reads.
  std::ostream& out = arguments.json_lines ? std::cerr : std::cout;
  if (!selection.empty_share.empty()) out << selection.empty_share << '\n';
  if (selection.cases.empty() && selection.skipped.empty() && selection.empty_share.empty()) {
    throw_bad_input(
        "no case was selected",
        "loosen --filter, --only, --shard or --rerun-failed; `shardproof list` shows all");
  }
  const report::JobSummary job_summary;
  const std::string& program = program_digest();
  if (earlier) require_same_cases(earlier->run, program, selection);
  const std::string folder =
      earlier ? arguments.resume
              : results_folder(arguments.out, inputs_of_run(arguments), arguments.force);
  if (!arguments.world.ignore_limits) require_room(arguments, selection, folder);
  const auto limits = limits_for(arguments.world);
  const runs::RunWorlds worlds = {.fresh = arguments.world.fresh,
                                  .cached_goldens = !arguments.world.no_cache,
                                  .of_goldens = limits,
                                  // The ranks of a launcher may be on other machines.
                                  .of_worlds = arguments.world_size ? std::nullopt : limits};
  runs::CaseRuns run(arguments, pool, worlds, folder, std::move(selection.cases),
                     [&](const std::string& replay, int64_t schedules) {
                       return with_replay_flags(replay, arguments, schedules);
                     });
  if (earlier) {
    for (const size_t place : finished_of(earlier->run)) {
      run.set_finished(place, earlier->run.finished.at(place));
    }
  }
  run.info.skipped = std::move(selection.skipped);
  run.info.started = report::utc_now();
  run.info.command = command.text;
  run.info.arguments = command.words;
  const auto after_command = run.info.arguments.begin() + (command.words.empty() ? 0 : 1);
  run.info.arguments.insert(after_command, arguments.taken_over.begin(),
                            arguments.taken_over.end());
  run.info.directory = std::filesystem::current_path().string();
  run.info.version = version_text();
  run.info.program = program;
  run.info.selection = selection.digest;
  run.info.compact =
      arguments.keep.empty() ? run.cases().size() > kFewCases : arguments.keep == "unexpected";
  run.info.no_unresolved = arguments.no_unresolved;
  std::unique_ptr<report::RunFiles> files;
  if (earlier) {
    run.info.started = earlier->run.info.started;
    run.info.selection = earlier->run.info.selection;
    run.info.command = earlier->run.info.command;
    run.info.arguments = earlier->run.info.arguments;
    files = std::move(earlier->files);
    files->drop_results();
  } else {  // without links, which another run may move
    files = std::make_unique<report::RunFiles>(std::filesystem::canonical(folder).string(),
                                               run.info, run.cases());
  }
  run.run_all(*files);
  std::vector<judge::CaseResult> results = run.results();
  const bool all_related = arguments.relations && arguments.shard_count == 1 &&
                           !run.info.interrupted && run.info.not_run.empty();
  const bool all_refused = !results.empty() && std::ranges::all_of(results, [](const auto& result) {
    return result.may_be_refused;
  });
  // Scenarios and the machine excuse what they skip; that no relation fits excuses nothing.
  const bool none_fits = results.empty() && selection.slow == 0 && !run.info.skipped.empty() &&
                         std::ranges::all_of(run.info.skipped, [](const CaseSpec& spec) {
                           return spec.skip.starts_with(relations::kNoRelation);
                         });
  const bool no_relation = all_related && (all_refused || none_fits);
  run.info.exit_status = no_relation ? kBadInput : status_of(results, run.info, arguments);
  files->finish(results, run.info);
  if (arguments.durations > 0) out << '\n' << report::slowest_text(results, arguments.durations);
  const report::SummaryParts parts{.results = results,
                                   .skipped = run.info.skipped,
                                   .not_run = run.info.not_run,
                                   .seconds = run.info.seconds,
                                   .exit_status = run.info.exit_status,
                                   .slow = selection.slow,
                                   .run_folder = folder,
                                   .resumable = !arguments.world_size && !arguments.drawn,
                                   .program = command.program};
  out << report::summary_text(parts, report::wants_color() && !arguments.json_lines);
  job_summary.add(report::job_section(parts));
  if (no_relation) {
    throw_bad_input(none_fits ? "no relation says anything about these cases: nothing was compared"
                              : "every changed case was refused: nothing was compared",
                    "choose other cases or relations with --filter");
  }
  if (finished != nullptr) *finished = std::move(results);
  return run.info.exit_status;
}

namespace {

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

int resume_run(const RunArguments& given, const CommandLine& command, world::WorldPool& pool,
               ShrinkUnexpected shrink) {
  ResumedRun earlier = earlier_run(given.resume);
  const RunArguments arguments = resumed_arguments(given, earlier);
  enter_directory_of(earlier.run);
  return run_selected(arguments, command, select_cases(arguments), pool, shrink,
                      std::move(earlier));
}

}  // namespace

int run_command(const RunArguments& given, const CommandLine& command, world::WorldPool& pool,
                ShrinkUnexpected shrink) {
  if (!given.resume.empty()) return resume_run(given, command, pool, shrink);
  const RunArguments arguments = as_they_ran(given);
  return run_selected(arguments, command, select_cases(arguments), pool, shrink, std::nullopt);
}

}  // namespace shardproof::sim::cli
