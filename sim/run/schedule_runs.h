// Runs a case under all schedules that can differ (run --schedules all).
#pragma once

#include <functional>

#include "sim/run/case_runner.h"

namespace shardproof::sim::run {

inline constexpr int64_t kMostSchedules = 10000;  // of a case

class ScheduleRuns {
 public:
  // No run starts once `stops` says so.
  ScheduleRuns(CaseRunner& runner, std::function<bool()> stops)
      : runner_(runner), stops_(std::move(stops)) {}

  // `stopped`: as expected so far, and ended by `stops`.
  using Done = std::function<void(judge::CaseResult result, bool stopped)>;
  // Calls `done` once, later in the runner's waits: with the first result that is not as expected,
  // or else that of the first schedule. Its message says how many schedules there were, and whether
  // they were all.
  void start(const CaseSpec& spec, const Done& done);

 private:
  struct Job;
  void go_on(const std::shared_ptr<Job>& job);
  void take(const std::shared_ptr<Job>& job, int64_t schedule, judge::CaseResult result);

  CaseRunner& runner_;
  std::function<bool()> stops_;
};

}  // namespace shardproof::sim::run
