#include "sim/cli/run_cases.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <thread>

#include "base/elapsed.h"
#include "base/error.h"
#include "sim/cli/replay_flags.h"
#include "sim/cli/version.h"
#include "sim/report/run_folder.h"
#include "sim/report/summary.h"
#include "sim/run/case_runner.h"

namespace shardproof::sim {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kInterrupted = 130;

// One run: its cases and its results.
class Run {
 public:
  Run(const RunArguments& arguments, WorldPool& pool, Selection selection,
      const std::string& folder)
      : files(folder),
        arguments_(arguments),
        pool_(pool),
        goldens_(pool, !arguments.world.no_cache),
        runner_(pool, goldens_, arguments.world.fresh),
        selection_(std::move(selection)),
        progress_(std::cout, ::isatty(STDOUT_FILENO) != 0,
                  static_cast<int64_t>(selection_.cases.size())) {
    info.skipped = selection_.skipped;
  }

  void run_all() {
    const Clock::time_point start = Clock::now();
    for (const CaseSpec& spec : selection_.cases) {
      wait_for_room(spec);
      if (pool_.interrupted()) break;
      if (arguments_.fail_fast && failed_) {
        skip(spec, "an earlier case was not as expected (--fail-fast)");
        continue;
      }
      if (arguments_.time_budget_s && seconds_since(start) > *arguments_.time_budget_s) {
        skip(spec, fmt::format("the time budget of {} s was used up", *arguments_.time_budget_s));
        continue;
      }
      start_one(spec);
    }
    runner_.wait_until_at_most(0);
    info.seconds = seconds_since(start);
    info.interrupted = pool_.interrupted();
  }

  std::vector<CaseResult> results;  // expected ones have no reports; the files have them
  RunInfo info;
  RunFiles files;

 private:
  void wait_for_room(const CaseSpec& spec) {
    if (arguments_.jobs > 0) {
      runner_.wait_until_at_most(arguments_.jobs - 1);
    } else if (spec.world.backend != "emulated") {
      runner_.wait_until_at_most(0);  // its ranks use every core, so parallel cases are not faster
    } else {
      runner_.wait_for_room(spec.parallel.world_size(), cores_);
    }
  }

  void start_one(const CaseSpec& spec) {
    progress_.started(spec.name);
    const size_t place = results.size();
    results.emplace_back().spec = spec;  // in the order of the selection, not of the endings
    runner_.start(spec, [this, place](CaseResult result) {
      if (pool_.interrupted()) return;  // an interrupted case has no result
      result.replay = with_replay_flags(result.replay, arguments_);
      failed_ = failed_ || !result.as_expected;
      progress_.finished(result);
      files.add(place, result, info);
      if (result.as_expected) result.reports = {};
      results[place] = std::move(result);
    });
  }

  void skip(CaseSpec spec, const std::string& reason) {
    spec.skip = reason;
    info.skipped.push_back(std::move(spec));
  }

  const RunArguments& arguments_;
  WorldPool& pool_;
  GoldenStore goldens_;
  CaseRunner runner_;
  Selection selection_;
  Progress progress_;
  const int64_t cores_ = std::max<int64_t>(1, std::thread::hardware_concurrency());
  bool failed_ = false;  // some case had an unexpected result
};

int status_of(const Run& run, const RunArguments& arguments) {
  if (run.info.interrupted) return kInterrupted;
  const int status = exit_status(run.results, arguments.no_unresolved);
  const bool skipped_counts = arguments.no_skips && !run.info.skipped.empty();
  return skipped_counts && status != 5 ? 2 : status;
}

}  // namespace

int run_cases(const RunArguments& arguments, const std::string& command_line, Selection selection,
              WorldPool& pool) {
  if (selection.cases.empty() && selection.skipped.empty()) {
    throw Error(
        {.kind = ErrorKind::kBadInput,
         .what = "no case was selected",
         .fix = "loosen --filter, --only, --shard or --rerun-failed; `shardproof list` shows all"});
  }
  const std::string folder = create_run_folder(arguments.out);
  Run run(arguments, pool, std::move(selection), folder);
  run.run_all();
  std::erase_if(run.results, [](const CaseResult& result) { return result.verdict.empty(); });
  run.info.command = command_line;
  run.info.version = version_text();
  run.info.exit_status = status_of(run, arguments);
  run.files.finish(run.results, run.info);
  std::cout << summary_text({.results = run.results,
                             .skipped = run.info.skipped,
                             .seconds = run.info.seconds,
                             .exit_status = run.info.exit_status,
                             .interrupted = run.info.interrupted,
                             .run_folder = folder},
                            ::isatty(STDOUT_FILENO) != 0);
  return run.info.exit_status;
}

}  // namespace shardproof::sim
