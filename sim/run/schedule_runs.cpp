#include "sim/run/schedule_runs.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/count_of.h"
#include "sim/case/schedule_search.h"
#include "sim/judge/verdict/schedules.h"

namespace shardproof::sim::run {

struct ScheduleRuns::Job {
  CaseSpec spec;
  Done done;
  ScheduleSearch search = {};
  judge::ScheduleComparison comparison = {};
  std::optional<judge::CaseResult> kept = {};  // the first, or that which is not as expected
  double seconds = 0;
  int64_t unfinished = 0;  // runs that tell nothing of other schedules
  bool ends = false;
};

namespace {

// `stopped`: what ended the search before its end; "": nothing.
std::string counted(const ScheduleSearch& search, int64_t unfinished, const std::string& stopped) {
  const int64_t explored = search.explored() + unfinished;
  const std::string text = fmt::format("{} explored in {}", count_of(explored, "schedule"),
                                       count_of(explored + search.redundant(), "run"));
  if (search.complete() && unfinished == 0) return text + ": all that can differ";
  if (!stopped.empty()) return text + ": NOT ALL that can differ, " + stopped;
  return text + ": NOT ALL that can differ, as some part from the first one at too many calls";
}

}  // namespace

void ScheduleRuns::start(const CaseSpec& spec, const Done& done) {
  go_on(std::make_shared<Job>(Job{.spec = spec, .done = done}));
}

void ScheduleRuns::go_on(const std::shared_ptr<Job>& job) {
  const int64_t runs = job->search.explored() + job->search.redundant();
  std::optional<int64_t> schedule;
  std::string stopped;
  bool by_run = false;
  if (job->ends) {
    stopped = "as this ended the search";
  } else if (runs >= kMostSchedules) {
    stopped = fmt::format("which is the bound of {} runs for a case", kMostSchedules);
  } else if (runs > 0 && stops_()) {
    stopped = "as the run was to stop";
    by_run = true;
  } else {
    schedule = job->search.next();
  }
  if (schedule) {
    CaseSpec one = job->spec;
    one.world.schedule = *schedule;
    runner_.start(one, [this, job, schedule = *schedule](judge::CaseResult result) {
      take(job, schedule, std::move(result));
    });
    return;
  }
  judge::CaseResult result = std::move(*job->kept);
  const std::string text = counted(job->search, job->unfinished, stopped);
  result.message = result.message.empty() ? text : result.message + "; " + text;
  result.seconds = job->seconds;
  job->done(std::move(result), by_run);
}

void ScheduleRuns::take(const std::shared_ptr<Job>& job, int64_t schedule,
                        judge::CaseResult result) {
  job->seconds += result.seconds;
  job->comparison.add(result);
  bool finished = !result.endings.empty();
  for (const RankEnding& ending : result.endings) {
    finished = finished && ending.kind == ResultKind::kFinished;
  }
  if (finished) {
    job->search.add(schedule, trace_from_text(result.endings.front().message));
    result.endings.front().message.clear();
  } else {
    ++job->unfinished;
  }
  // One that the ranks refuse, or that fails as it is to, has one way to do so.
  job->ends = !finished || !result.as_expected;
  if (!job->kept || !result.as_expected) job->kept = std::move(result);
  go_on(job);
}

}  // namespace shardproof::sim::run
