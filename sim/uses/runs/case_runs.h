// Runs many cases, one result each: against their goldens, under schedules, or as relations.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "sim/judge/verdict/schedules.h"
#include "sim/report/run_folder.h"
#include "sim/report/summary.h"
#include "sim/run/case_runner.h"
#include "sim/run/schedule_runs.h"
#include "sim/uses/relations/relation_runs.h"
#include "sim/uses/runs/run_settings.h"

namespace shardproof::sim::runs {

// What the worlds of a run may take and keep.
struct RunWorlds {
  bool fresh = false;                                                 // a new world for every case
  bool cached_goldens = true;                                         // of earlier runs too
  std::optional<run::MachineLimits> of_goldens = {}, of_worlds = {};  // none: whatever they take
};

class CaseRuns {
 public:
  // The command that repeats a case, from that of its result and the schedules that it had.
  using Replay = std::function<std::string(const std::string& command, int64_t schedules)>;

  // Files of relations lie in `folder`. Keeps `settings` and `pool`.
  CaseRuns(const RunSettings& settings, world::WorldPool& pool, const RunWorlds& worlds,
           const std::string& folder, std::vector<CaseSpec> cases, Replay replay);

  const std::vector<CaseSpec>& cases() const { return cases_; }
  // The case at `place` ran before.
  void set_finished(size_t place, judge::CaseResult result);
  // Runs the cases that have no result yet; each is in `files` before it is said to have finished.
  void run_all(report::RunFiles& files);
  // Of the cases that ran; those as expected without reports, which are in the files.
  std::vector<judge::CaseResult> results() const;

  report::RunInfo info;  // run_all adds the time, how it ended, and what was not run

 private:
  bool is_finished(size_t place) const { return results_[place].has_value(); }
  int64_t missing_count() const;
  void wait_for_room(const CaseSpec& spec);
  // The first of the cases that need not wait for its golden: others wait without a world's place.
  std::list<size_t>::const_iterator next_of(const std::list<size_t>& left);
  // Starts goldens of the cases from `place` on, at most two at a time.
  void prepare_from(size_t place);
  report::Progress::Style progress_style() const;
  std::string why_to_stop() const;  // "" to go on
  void start_one(size_t place, report::Progress& progress, report::RunFiles& files);
  void list_missing();

  const RunSettings& settings_;
  world::WorldPool& pool_;
  run::GoldenStore goldens_;
  run::CaseRunner runner_;
  relations::RelationRuns relations_;
  run::ScheduleRuns all_schedules_;
  Replay replay_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<CaseSpec> cases_;
  std::vector<std::optional<judge::CaseResult>> results_;  // by place; empty: not run
  size_t prepared_ = 0;                                    // cases whose goldens were started
  std::string reason_;                                     // why the missing cases were not run
  int64_t failed_ = 0;                                     // cases that were not as expected
  judge::ScheduleComparison schedules_;
};

}  // namespace shardproof::sim::runs
