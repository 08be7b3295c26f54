#include "sim/run/case_runner.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>

#include "base/elapsed.h"
#include "base/error.h"
#include "base/temporary_folder.h"
#include "sim/case/names.h"
#include "sim/judge/verdict/microbatches.h"
#include "sim/judge/verdict/recurrence.h"
#include "sim/run/case_check.h"
#include "sim/world/rank/case_options.h"

namespace shardproof::sim::run {

namespace {

// Times the allowance: 1e-6 of a tensor's scale, or 1e-10 of what it was computed from, where sums
// cancelled. A larger error is not a rounding that the model amplified.
constexpr double kMostAmplified = 1e4;

using Clock = std::chrono::steady_clock;

// The message with a file: the one that it names already, or else a file of the case.
std::string with_file(const CaseSpec& spec, const std::string& message) {
  for (const std::string& file : {spec.weights_folder, spec.data.file, spec.file}) {
    if (!file.empty() && message.find(file) != std::string::npos) return message;
  }
  const std::string& file = spec.weights_folder.empty() ? spec.file : spec.weights_folder;
  return file + ": " + message;
}

// The ending of a case whose golden failed.
RankEnding ending_of(const CaseSpec& spec, const world::TaskOutcome& outcome) {
  RankEnding ending;
  const bool refused =
      outcome.kind == ResultKind::kBadInput || outcome.kind == ResultKind::kRefused;
  const bool of_ranks = spec.reference.is_set();  // whose failures have kinds of their own
  ending.kind = refused || of_ranks || was_ended(outcome) ? outcome.kind : ResultKind::kInternal;
  ending.message =
      refused || of_ranks ? outcome.message : "the golden did not finish: " + outcome.message;
  if (ending.kind == ResultKind::kBadInput) ending.message = with_file(spec, outcome.message);
  return ending;
}

RankEnding ending_of(const CaseSpec& spec, const Error& error) {
  if (error.kind() == ErrorKind::kRefused) {
    return {.kind = ResultKind::kRefused, .message = error.what()};
  }
  return {.kind = ResultKind::kBadInput, .message = with_file(spec, error.what())};
}

// Whether the world can run another case. One that failed, or whose replicas differ, is replaced.
bool leaves_world_whole(const judge::CaseResult& result) {
  return result.verdict == Verdict::kMatch || result.verdict == Verdict::kRefused ||
         (result.verdict == Verdict::kMismatch && result.kind == ResultKind::kValues);
}

// Whether roundings that the model amplifies may explain the mismatch: the rule of float64 is a
// constant, and a chaotic model carries roundings further. A metric may be the difference of sums
// that are larger than it is by any factor.
bool may_be_amplified(const judge::CaseResult& result) {
  const CaseSpec& spec = result.spec;
  const bool of_values = result.kind == ResultKind::kValues || result.kind == ResultKind::kMetrics;
  if (result.verdict != Verdict::kMismatch || !of_values) return false;
  if (spec.precision != Precision::kFloat64 || !is_model_workload(spec.workload)) return false;
  if (!result.divergence) return false;
  const judge::ResultRow& first = result.divergence->worst;  // later ones grow from it
  return first.outcome == judge::Outcome::kMismatch && first.problem.empty() &&
         (first.kind == ObservationKind::kMetric ||
          first.worst_error <= kMostAmplified * first.allowance);  // false for NaN
}

// Whether few members are too few: something will be wrong.
bool expects_errors(const CaseSpec& spec) {
  return !spec.faults.empty() || spec.expect.verdict == Verdict::kMismatch ||
         spec.expect.verdict == Verdict::kFailed;
}

// A rank that refuses the copies of a hybrid model leaves ranks that hold no part of it waiting.
void check_copies(const CaseSpec& spec) {
  if (!is_model_workload(spec.workload)) return;
  world::shard_axes_of(spec.parallel);
  for (const StageSpec& stage : spec.stages) world::shard_axes_of(stage.parallel);
}

// The bytes that a golden may take beside running cases.
constexpr double kMostPrepared = 128 << 20;

// Null where none can be made: the ranks say why.
std::shared_ptr<const TemporaryFolder> scratch_folder() {
  try {
    const auto place = std::filesystem::temp_directory_path();
    return std::make_shared<const TemporaryFolder>((place / "shardproof-case-").string());
  } catch (const std::system_error&) {
    return nullptr;
  }
}

GoldenStore::Members first_members(const CaseSpec& spec) {
  return expects_errors(spec) ? GoldenStore::Members::kDue : GoldenStore::Members::kFew;
}

}  // namespace

struct CaseRunner::RunningCase {
  CaseSpec spec;
  Done done;
  Clock::time_point start = Clock::now();
  double golden_seconds = 0;
  std::shared_ptr<const GoldenStore::Golden> golden = nullptr;  // keeps its descriptor open
  bool leaves_world_whole = false;
  GoldenStore::Members members = GoldenStore::Members::kFew;
  std::optional<judge::CaseResult> first = std::nullopt;  // the mismatch of a case that runs again
  // Tried after a wrong gradient that nothing else explains.
  std::optional<std::vector<judge::MicrobatchGolden>> microbatches = std::nullopt;

  bool reference_failed() const { return spec.reference.is_set() && golden && !golden->outcome.ok; }
};

void CaseRunner::check(const CaseSpec& spec) const {
  check_case(spec);
  check_copies(spec);
  if (!limits_) return;
  check_world_limits(spec, *limits_);
  check_processes(spec.world.backend, spec.parallel.world_size(), *limits_);
}

void CaseRunner::prepare(const CaseSpec& spec) {
  if (!spec.judged || spec.reference.is_set() || !limits_) return;
  try {
    const double need = golden_need(spec);
    if (!(need > 0) || need > std::min(kMostPrepared, limits_->memory / 16)) return;
    check(spec);
    goldens_.start(spec, first_members(spec));
  } catch (const Error&) {
    // start() says why.
  }
}

bool CaseRunner::waits_for_golden(const CaseSpec& spec) {
  return spec.judged && goldens_.is_computing(spec, first_members(spec));
}

void CaseRunner::start(const CaseSpec& spec, Done done) {
  ++under_way_;
  ranks_under_way_ += spec.parallel.world_size();
  const auto running =
      std::make_shared<RunningCase>(RunningCase{.spec = spec, .done = std::move(done)});
  running->members = first_members(spec);
  try {
    check(spec);
  } catch (const Error& error) {
    finish(running, {ending_of(spec, error)});
    return;
  }
  if (!spec.judged) {
    start_world(running, GoldenStore::Golden{});
    return;
  }
  get_golden(running);
}

void CaseRunner::get_golden(const std::shared_ptr<RunningCase>& running) {
  const auto ready = [this, running](std::shared_ptr<const GoldenStore::Golden> golden) {
    running->golden = golden;
    running->golden_seconds = seconds_since(running->start);
    if (golden->outcome.ok) {
      start_world(running, *golden);
    } else {
      finish(running, {ending_of(running->spec, golden->outcome)});
    }
  };
  goldens_.get(running->spec, ready, running->members);
}

void CaseRunner::start_world(const std::shared_ptr<RunningCase>& running,
                             const GoldenStore::Golden& golden) {
  CaseSpec spec = running->spec;
  std::shared_ptr<const TemporaryFolder> scratch;  // of ranks that may die before they remove it
  if (spec.is(ModelWorkload::kPolicy)) {
    scratch = scratch_folder();
    spec.scratch_folder = scratch ? scratch->path() : "";
  }
  pool_.start_case(spec, golden.fd.get(), fresh_, [this, running, scratch](world::WorldRun run) {
    finish(running, run.endings);
    return running->leaves_world_whole;
  });
}

void CaseRunner::get_microbatches(const std::shared_ptr<RunningCase>& running,
                                  const std::vector<RankEnding>& endings, size_t next) {
  if (next == running->microbatches->size()) return finish(running, endings);
  judge::MicrobatchGolden& one = (*running->microbatches)[next];
  const auto ready = [this, running, endings, next,
                      &one](const std::shared_ptr<const GoldenStore::Golden>& golden) {
    if (!golden->outcome.ok) {  // nothing counts in its samples
      running->microbatches->clear();
      return finish(running, endings);
    }
    one.golden = std::make_shared<const GoldenRecord>(GoldenRecord::from_fd(golden->fd.get()));
    get_microbatches(running, endings, next + 1);
  };
  goldens_.get(judge::case_of_samples(running->spec, one.samples), ready);
}

void CaseRunner::finish(const std::shared_ptr<RunningCase>& running,
                        const std::vector<RankEnding>& endings) {
  judge::CaseResult result =
      judge::judge(running->spec, endings,
                   running->microbatches.value_or(std::vector<judge::MicrobatchGolden>()));
  using enum GoldenStore::Members;
  const bool amplified = running->members != kMeasured && may_be_amplified(result);
  const bool open = running->golden && running->golden->has_few && judge::is_open(result);
  if (running->golden && (amplified || open)) {
    running->members = amplified ? kMeasured : kDue;
    running->leaves_world_whole = leaves_world_whole(result);
    if (result.verdict == Verdict::kMismatch) running->first = std::move(result);
    pool_.post([this, running] { get_golden(running); });  // when the world is idle again
    return;
  }
  const bool right_now = result.verdict == Verdict::kMatch || result.verdict == Verdict::kRefused ||
                         result.verdict == Verdict::kBadInput;
  if (running->first && right_now && !judge::explains(result, *running->first)) {
    result = std::move(*running->first);
    judge::does_not_recur(result);
  }
  if (running->golden && !running->microbatches) {
    running->microbatches = judge::microbatches_to_try(result);
    if (!running->microbatches->empty()) {
      running->leaves_world_whole = leaves_world_whole(result);
      pool_.post([this, running, endings] { get_microbatches(running, endings, 0); });
      return;
    }
  }
  if (running->members == kMeasured && result.verdict == Verdict::kMatch) {
    result.message =
        "the model amplifies roundings: correct runs of one layout differ by more than the rule of "
        "float64 allows, so allowances were measured (docs/judge.md)";
  }
  // A scenario expects what happens to its ranks.
  if (running->golden && (was_ended(running->golden->outcome) || running->reference_failed())) {
    result.as_expected = false;
    result.unexpected = "what it is compared with was not computed";
  }
  result.golden_seconds = running->golden_seconds;
  result.seconds = seconds_since(running->start);
  running->leaves_world_whole = leaves_world_whole(result);
  --under_way_;
  ranks_under_way_ -= running->spec.parallel.world_size();
  running->done(std::move(result));
}

void CaseRunner::wait_until_at_most(int64_t count) {
  if (under_way_ > count) pool_.wait_until([this, count] { return under_way_ <= count; });
}

void CaseRunner::wait_for_room(int64_t ranks, int64_t cores) {
  const auto fits = [this, ranks, cores] {
    return under_way_ == 0 || (under_way_ < std::max<int64_t>(2, cores) &&
                               ranks_under_way_ + ranks <= kRanksPerCore * cores);
  };
  if (!fits()) pool_.wait_until(fits);
}

judge::CaseResult CaseRunner::run(const CaseSpec& spec) {
  std::optional<judge::CaseResult> result;
  start(spec, [&result](judge::CaseResult done) { result = std::move(done); });
  wait_until_at_most(0);
  SHARDPROOF_ASSERT(result.has_value(), "the case did not finish");
  return *result;
}

}  // namespace shardproof::sim::run
