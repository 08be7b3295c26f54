#include "sim/cli/schedule_runs.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "sim/case/schedule_search.h"
#include "sim/judge/verdict/schedules.h"

namespace shardproof::sim {

struct ScheduleRuns::Job {
  CaseSpec spec;
  CaseRunner::Done done;
  ScheduleSearch search = {};
  ScheduleComparison comparison = {};
  std::optional<CaseResult> kept = {};  // the first, or that which is not as expected
  double seconds = 0;
  bool ends = false;
};

namespace {

std::string counted(const ScheduleSearch& search, bool found) {
  const int64_t runs = search.explored() + search.redundant();
  std::string text = fmt::format("{} schedule{} explored in {} run{}", search.explored(),
                                 search.explored() == 1 ? "" : "s", runs, runs == 1 ? "" : "s");
  if (search.complete()) return text + ": all that can differ";
  if (found) return text + ": not all, as one of them shows this";
  return text + fmt::format(": NOT ALL that can differ (at most {}, and {})", kMostSchedules,
                            "those that part from the first one at few calls");
}

}  // namespace

void ScheduleRuns::start(const CaseSpec& spec, const CaseRunner::Done& done) {
  go_on(std::make_shared<Job>(Job{.spec = spec, .done = done}));
}

void ScheduleRuns::go_on(const std::shared_ptr<Job>& job) {
  const int64_t runs = job->search.explored() + job->search.redundant();
  std::optional<int64_t> schedule;
  if (!job->ends && runs < kMostSchedules && !(runs > 0 && stops_())) {
    schedule = job->search.next();
  }
  if (schedule) {
    CaseSpec one = job->spec;
    one.world.schedule = *schedule;
    runner_.start(one, [this, job, schedule = *schedule](CaseResult result) {
      take(job, schedule, std::move(result));
    });
    return;
  }
  CaseResult result = std::move(*job->kept);
  const std::string text = counted(job->search, !result.as_expected);
  result.message = result.message.empty() ? text : result.message + "; " + text;
  result.seconds = job->seconds;
  job->done(std::move(result));
}

void ScheduleRuns::take(const std::shared_ptr<Job>& job, int64_t schedule, CaseResult result) {
  job->seconds += result.seconds;
  job->comparison.add(result);
  bool finished = !result.endings.empty();
  for (const RankEnding& ending : result.endings) {
    finished = finished && ending.kind == ResultKind::kFinished;
  }
  if (finished) {
    job->search.add(schedule, trace_from_text(result.endings.front().message));
    result.endings.front().message.clear();
  }
  // One that the ranks refuse, or that fails as it is to, has one way to do so.
  job->ends = !finished || !result.as_expected;
  if (!job->kept || !result.as_expected) job->kept = std::move(result);
  go_on(job);
}

}  // namespace shardproof::sim
