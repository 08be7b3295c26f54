#include "sim/uses/runs/case_runs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string_view>
#include <thread>
#include <utility>

#include "base/elapsed.h"
#include "sim/report/color.h"

namespace shardproof::sim::runs {
namespace {

// Cases. The store keeps more goldens, of those that are under way too.
constexpr size_t kPreparedAhead = run::GoldenStore::kMostKept * 3 / 4;
constexpr int64_t kMostAtATime = 2;  // goldens, each of which has up to two threads

}  // namespace

CaseRuns::CaseRuns(const RunSettings& settings, world::WorldPool& pool, const RunWorlds& worlds,
                   const std::string& folder, std::vector<CaseSpec> cases, Replay replay)
    : settings_(settings),
      pool_(pool),
      goldens_(pool, worlds.cached_goldens, worlds.of_goldens),
      runner_(pool, goldens_, worlds.fresh, worlds.of_worlds),
      relations_(runner_, std::filesystem::absolute(folder) / "relations"),
      all_schedules_(runner_, [this] { return pool_.interrupted() || !why_to_stop().empty(); }),
      replay_(std::move(replay)),
      cases_(std::move(cases)),
      results_(cases_.size()) {}

void CaseRuns::set_finished(size_t place, judge::CaseResult result) {
  result.spec = cases_[place];
  results_[place] = std::move(result);
}

void CaseRuns::run_all(report::RunFiles& files) {
  report::Progress progress(std::cout, progress_style(), missing_count());
  std::list<size_t> left;
  for (size_t place = 0; place < cases_.size(); ++place) {
    if (!is_finished(place)) left.push_back(place);
  }
  while (!left.empty()) {
    const auto next = next_of(left);
    wait_for_room(cases_[*next]);
    if (pool_.interrupted()) break;
    reason_ = why_to_stop();
    if (!reason_.empty()) break;
    start_one(*next, progress, files);
    left.erase(next);
  }
  runner_.wait_until_at_most(0);
  for (const std::string& line : schedules_.equal()) {
    if (!settings_.json_lines) progress.note("schedules    " + line);
  }
  info.seconds = seconds_since(start_);
  info.interrupted = pool_.interrupted();
  if (info.interrupted) reason_ = "the run was interrupted";
  list_missing();
  for (const CaseSpec& spec : info.skipped) progress.left_out(spec, "skipped");
  for (const CaseSpec& spec : info.not_run) progress.left_out(spec, "not run");
}

std::list<size_t>::const_iterator CaseRuns::next_of(const std::list<size_t>& left) {
  if (settings_.relations || settings_.schedules == kAllSchedules) return left.begin();
  const Backend backend = cases_[left.front()].world.backend;
  for (;;) {
    prepare_from(left.front());
    for (auto at = left.begin(); at != left.end() && *at < prepared_; ++at) {
      if (cases_[*at].world.backend != backend) break;
      if (!runner_.waits_for_golden(cases_[*at])) return at;
    }
    const int64_t computing = goldens_.computing();
    const auto one_is_there = [&] {
      return pool_.interrupted() || goldens_.computing() < computing;
    };
    if (computing == 0 || one_is_there()) return left.begin();
    pool_.wait_until(one_is_there);
  }
}

void CaseRuns::prepare_from(size_t place) {
  const size_t end = std::min(cases_.size(), place + kPreparedAhead);
  for (prepared_ = std::max(prepared_, place); prepared_ < end; ++prepared_) {
    if (goldens_.computing() >= kMostAtATime) return;
    if (!is_finished(prepared_)) runner_.prepare(cases_[prepared_]);
  }
}

std::vector<judge::CaseResult> CaseRuns::results() const {
  std::vector<judge::CaseResult> finished;
  for (const auto& result : results_) {
    if (result) finished.push_back(*result);
  }
  return finished;
}

int64_t CaseRuns::missing_count() const {
  return std::count(results_.begin(), results_.end(), std::nullopt);
}

void CaseRuns::wait_for_room(const CaseSpec& spec) {
  if (settings_.jobs > 0) {
    runner_.wait_until_at_most(settings_.jobs - 1);
  } else if (spec.world.backend != Backend::kEmulated) {
    runner_.wait_until_at_most(0);  // its ranks use every core, so parallel cases are not faster
  } else {
    const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
    runner_.wait_for_room(spec.parallel.world_size(), cores);
  }
}

report::Progress::Style CaseRuns::progress_style() const {
  const char* github = std::getenv("GITHUB_ACTIONS");
  return {.terminal = ::isatty(STDOUT_FILENO) != 0 && !settings_.json_lines,
          .color = report::wants_color(),
          .quiet = settings_.quiet,
          .json_lines = settings_.json_lines,
          .annotations = github != nullptr && std::string_view(github) == "true"};
}

std::string CaseRuns::why_to_stop() const {
  if (settings_.max_fail > 0 && failed_ >= settings_.max_fail) {
    return fmt::format("{} {} not as expected (--maxfail {})", failed_,
                       failed_ == 1 ? "case was" : "cases were", settings_.max_fail);
  }
  if (settings_.time_budget_s && !(seconds_since(start_) <= *settings_.time_budget_s)) {
    return fmt::format("the time budget of {:.6g} s was used up", *settings_.time_budget_s);
  }
  return "";
}

void CaseRuns::start_one(size_t place, report::Progress& progress, report::RunFiles& files) {
  progress.started(cases_[place].name);
  const run::CaseRunner::Done done = [this, place, &progress, &files](judge::CaseResult result) {
    if (pool_.interrupted()) return;  // how it ended says nothing about it
    if (settings_.drawn && result.verdict == Verdict::kBadInput) {
      result.verdict = Verdict::kRefused;
    }
    if (settings_.drawn && result.verdict == Verdict::kRefused) {
      result.as_expected = result.may_be_refused = true;
    }
    const int64_t schedules = schedules_.add(result);
    result.replay = replay_(result.replay, schedules);
    failed_ += result.as_expected ? 0 : 1;
    files.add(place, result, info);
    progress.finished(result);
    if (result.as_expected) result.reports = {};
    results_[place] = std::move(result);
  };
  if (settings_.relations) {
    relations_.start(cases_[place], done);
  } else if (settings_.schedules == kAllSchedules &&
             cases_[place].world.backend == Backend::kEmulated) {
    const auto take = [this, place, done, &progress](judge::CaseResult result, bool stopped) {
      if (!settings_.json_lines && !pool_.interrupted()) {
        progress.note(fmt::format("schedules    {}: {}", result.spec.name, result.message));
      }
      if (stopped) {  // its other schedules are missing
        cases_[place].skip = result.message;
      } else {
        done(std::move(result));
      }
    };
    all_schedules_.start(cases_[place], take);
  } else {
    runner_.start(cases_[place], done);
  }
}

void CaseRuns::list_missing() {
  for (size_t place = 0; place < cases_.size(); ++place) {
    if (is_finished(place)) continue;
    info.not_run.push_back(cases_[place]);
    std::string& why = info.not_run.back().skip;
    if (why.empty()) why = reason_;
  }
}

}  // namespace shardproof::sim::runs
