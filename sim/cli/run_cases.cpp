#include "sim/cli/run_cases.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <thread>
#include <vector>

#include "base/digest.h"
#include "base/elapsed.h"
#include "base/error.h"
#include "sim/cli/machine.h"
#include "sim/cli/outputs.h"
#include "sim/cli/replay_flags.h"
#include "sim/cli/version.h"
#include "sim/judge/verdict/schedules.h"
#include "sim/report/color.h"
#include "sim/report/results_json.h"
#include "sim/report/run_folder.h"
#include "sim/report/summary.h"
#include "sim/run/case_runner.h"
#include "sim/run/schedule_runs.h"
#include "sim/uses/relations/relation_runs.h"

namespace shardproof::sim::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kInterrupted = 130;
constexpr int kBadInput = 2;

constexpr size_t kFewCases = 50;  // a run of no more keeps all of each

// One run: its cases and its results.
class Run {
 public:
  Run(const RunArguments& arguments, world::WorldPool& pool, Selection selection,
      const std::optional<ResumedRun>& earlier, const std::string& folder)
      : arguments_(arguments),
        pool_(pool),
        limits_(limits_for(arguments.world)),
        goldens_(pool, !arguments.world.no_cache, limits_),
        runner_(pool, goldens_, arguments.world.fresh, limits_of_worlds()),
        relations_(runner_, std::filesystem::absolute(folder) / "relations"),
        all_schedules_(runner_, [this] { return pool_.interrupted() || !why_to_stop().empty(); }),
        cases_(std::move(selection.cases)),
        results_(cases_.size()) {
    info.skipped = std::move(selection.skipped);
    if (!earlier) return;
    for (const auto& [place, result] : earlier->run.finished) results_[place] = result;
  }

  const std::vector<CaseSpec>& cases() const { return cases_; }

  // Runs the cases that have no result yet; each is in `files` before it is said to have finished.
  void run_all(report::RunFiles& files) {
    report::Progress progress(std::cout, progress_style(), missing_count());
    for (size_t place = 0; place < cases_.size(); ++place) {
      if (is_finished(place)) continue;
      wait_for_room(cases_[place]);
      if (pool_.interrupted()) break;
      reason_ = why_to_stop();
      if (!reason_.empty()) break;
      start_one(place, progress, files);
    }
    runner_.wait_until_at_most(0);
    for (const std::string& line : schedules_.equal()) {
      if (!arguments_.json_lines) progress.note("schedules    " + line);
    }
    info.seconds = seconds_since(start_);
    info.interrupted = pool_.interrupted();
    if (info.interrupted) reason_ = "the run was interrupted";
    list_missing();
  }

  // Of the cases that ran; those as expected without reports, which are in the files.
  std::vector<judge::CaseResult> results() const {
    std::vector<judge::CaseResult> finished;
    for (size_t place = 0; place < cases_.size(); ++place) {
      if (is_finished(place)) finished.push_back(*results_[place]);
    }
    return finished;
  }

  report::RunInfo info;

 private:
  // The ranks of a launcher may be on other machines.
  std::optional<run::MachineLimits> limits_of_worlds() const {
    return arguments_.world_size ? std::nullopt : limits_;
  }

  bool is_finished(size_t place) const { return results_[place].has_value(); }

  int64_t missing_count() const {
    int64_t count = 0;
    for (size_t place = 0; place < cases_.size(); ++place) count += !is_finished(place);
    return count;
  }

  void wait_for_room(const CaseSpec& spec) {
    if (arguments_.jobs > 0) {
      runner_.wait_until_at_most(arguments_.jobs - 1);
    } else if (spec.world.backend != Backend::kEmulated) {
      runner_.wait_until_at_most(0);  // its ranks use every core, so parallel cases are not faster
    } else {
      runner_.wait_for_room(spec.parallel.world_size(), cores_);
    }
  }

  report::Progress::Style progress_style() const {
    const char* github = std::getenv("GITHUB_ACTIONS");
    return {.terminal = ::isatty(STDOUT_FILENO) != 0 && !arguments_.json_lines,
            .color = report::wants_color(),
            .quiet = arguments_.quiet,
            .json_lines = arguments_.json_lines,
            .annotations = github != nullptr && std::string_view(github) == "true"};
  }

  // "" to go on.
  std::string why_to_stop() const {
    if (arguments_.max_fail > 0 && failed_ >= arguments_.max_fail) {
      return fmt::format("{} {} not as expected (--maxfail {})", failed_,
                         failed_ == 1 ? "case was" : "cases were", arguments_.max_fail);
    }
    if (arguments_.time_budget_s && !(seconds_since(start_) <= *arguments_.time_budget_s)) {
      return fmt::format("the time budget of {} s was used up", *arguments_.time_budget_s);
    }
    return "";
  }

  void start_one(size_t place, report::Progress& progress, report::RunFiles& files) {
    progress.started(cases_[place].name);
    const run::CaseRunner::Done done = [this, place, &progress, &files](judge::CaseResult result) {
      if (pool_.interrupted()) return;  // how it ended says nothing about it
      if (arguments_.drawn && result.verdict == Verdict::kBadInput) {
        result.verdict = Verdict::kRefused;
      }
      if (arguments_.drawn && result.verdict == Verdict::kRefused) result.as_expected = true;
      const int64_t schedules = schedules_.add(result);
      result.replay = with_replay_flags(result.replay, arguments_, schedules);
      failed_ += result.as_expected ? 0 : 1;
      files.add(place, result, info);
      progress.finished(result);
      if (result.as_expected) result.reports = {};
      results_[place] = std::move(result);
    };
    if (arguments_.relations) {
      relations_.start(cases_[place], done);
    } else if (arguments_.schedules == kAllSchedules &&
               cases_[place].world.backend == Backend::kEmulated) {
      all_schedules_.start(cases_[place], [this, done, &progress](judge::CaseResult result) {
        if (!arguments_.json_lines && !pool_.interrupted()) {
          progress.note(fmt::format("schedules    {}: {}", result.spec.name, result.message));
        }
        done(std::move(result));
      });
    } else {
      runner_.start(cases_[place], done);
    }
  }

  void list_missing() {
    for (size_t place = 0; place < cases_.size(); ++place) {
      if (is_finished(place)) continue;
      info.not_run.push_back(cases_[place]);
      info.not_run.back().skip = reason_;
    }
  }

  const RunArguments& arguments_;
  world::WorldPool& pool_;
  std::optional<run::MachineLimits> limits_;
  run::GoldenStore goldens_;
  run::CaseRunner runner_;
  relations::RelationRuns relations_;
  run::ScheduleRuns all_schedules_;
  const Clock::time_point start_ = Clock::now();
  std::vector<CaseSpec> cases_;
  std::vector<std::optional<judge::CaseResult>> results_;  // by place; empty: not run
  std::string reason_;                                     // why the missing cases were not run
  const int64_t cores_ = std::max<int64_t>(1, std::thread::hardware_concurrency());
  int64_t failed_ = 0;  // cases that were not as expected
  judge::ScheduleComparison schedules_;
};

int status_of(const std::vector<judge::CaseResult>& results, const report::RunInfo& info,
              const RunArguments& arguments) {
  if (info.interrupted) return kInterrupted;
  const int status = judge::exit_status(results, arguments.no_unresolved);
  const bool skipped_counts = arguments.no_skips && !info.skipped.empty();
  if (skipped_counts && status != 5) return kBadInput;
  const bool partial = !info.not_run.empty() && !arguments.allow_partial;
  return status == 0 && partial ? kBadInput : status;
}

// Of this program's file, which every run reads.
std::string program_digest() {
  std::ifstream program("/proc/self/exe", std::ios::binary);
  std::vector<char> piece(1 << 18);
  uint64_t digest = 0;
  do {
    program.read(piece.data(), std::ssize(piece));
    digest = mix_bits(digest + digest_of(piece.data(), static_cast<size_t>(program.gcount())));
  } while (program);
  return fmt::format("{:016x}", digest);
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

// The cases must be those of the earlier run, or results of two programs would lie in one folder.
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

}  // namespace

int run_cases(const RunArguments& arguments, const CommandLine& command, Selection selection,
              world::WorldPool& pool, std::optional<ResumedRun> earlier,
              std::vector<judge::CaseResult>* finished) {
  if (!selection.empty_share.empty()) {
    (arguments.json_lines ? std::cerr : std::cout) << selection.empty_share << '\n';
    return 0;
  }
  if (selection.cases.empty() && selection.skipped.empty()) {
    throw_bad_input(
        "no case was selected",
        "loosen --filter, --only, --shard or --rerun-failed; `shardproof list` shows all");
  }
  const std::string program = program_digest();
  if (earlier) require_same_cases(earlier->run, program, selection);
  const std::string folder =
      earlier ? arguments.resume
              : results_folder(arguments.out, inputs_of_run(arguments), arguments.force);
  if (!arguments.world.ignore_limits) require_room(arguments, selection, folder);
  Run run(arguments, pool, std::move(selection), earlier, folder);
  run.info.started = report::utc_now();
  run.info.command = command.text;
  run.info.arguments = command.words;
  run.info.directory = std::filesystem::current_path().string();
  run.info.version = version_text();
  run.info.program = program;
  run.info.compact =
      arguments.keep.empty() ? run.cases().size() > kFewCases : arguments.keep == "unexpected";
  std::unique_ptr<report::RunFiles> files;
  if (earlier) {
    run.info.started = earlier->run.info.started;
    run.info.command = earlier->run.info.command;
    files = std::move(earlier->files);
    files->drop_results();
  } else {  // without links, which another run may move
    files = std::make_unique<report::RunFiles>(std::filesystem::canonical(folder).string(),
                                               run.info, run.cases());
  }
  run.run_all(*files);
  std::vector<judge::CaseResult> results = run.results();
  run.info.exit_status = status_of(results, run.info, arguments);
  files->finish(results, run.info);
  std::ostream& out = arguments.json_lines ? std::cerr : std::cout;
  if (arguments.durations > 0) out << '\n' << report::slowest_text(results, arguments.durations);
  out << report::summary_text({.results = results,
                               .skipped = run.info.skipped,
                               .not_run = run.info.not_run,
                               .seconds = run.info.seconds,
                               .exit_status = run.info.exit_status,
                               .run_folder = folder,
                               .resumable = !arguments.world_size,
                               .program = command.program},
                              report::wants_color() && !arguments.json_lines);
  if (finished != nullptr) *finished = std::move(results);
  return run.info.exit_status;
}

}  // namespace shardproof::sim::cli
