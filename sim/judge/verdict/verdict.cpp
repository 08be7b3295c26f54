#include "sim/judge/verdict/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "sim/case/names.h"
#include "sim/judge/diff/addends.h"
#include "sim/judge/explain/diagnose.h"
#include "sim/judge/explain/wording.h"
#include "sim/judge/verdict/endings.h"
#include "sim/judge/verdict/expectations.h"
#include "sim/judge/verdict/fault_effect.h"
#include "sim/judge/verdict/findings.h"
#include "sim/judge/verdict/replay.h"

namespace shardproof::sim::judge {
namespace {

void take(CaseResult& result, const EndingVerdict& verdict) {
  result.verdict = verdict.verdict;
  result.kind = verdict.kind;
  result.message = verdict.message;
}

// Reads the reports of ranks that finished. An unreadable report is an error of this program.
std::optional<EndingVerdict> read_reports(const std::vector<RankEnding>& endings,
                                          CaseResult& result) {
  for (const RankEnding& ending : endings) {
    if (ending.kind != ResultKind::kFinished) continue;
    try {
      result.reports.push_back(decode_rank_report(ending.bytes));
    } catch (const InternalError& error) {
      return EndingVerdict{Verdict::kInternal, ResultKind::kInternal,
                           fmt::format("rank {}: {}", ending.rank, error.what())};
    }
  }
  return {};
}

std::string values_message(const Divergence& found, const CaseSpec& spec) {
  std::string message = fmt::format("{} of step {} ({}{}): {}", found.tensor, found.step,
                                    phase_name(found.phase), site_text(found.worst), found.pattern);
  if (!found.likely.empty()) message += "; likely " + found.likely;
  if (found.kind == ResultKind::kValues && may_be_rounding(found.worst)) {
    message += "; " + rounding_note(spec.precision);
  }
  return message;
}

// Drops large addends; those of the divergence stay for the files of the run.
void drop_addends(CaseResult& result) {
  for (RankReport& report : result.reports) {
    std::erase_if(report.pieces, [&](const Piece& piece) {
      const bool shown = result.divergence && piece.name == result.divergence->tensor &&
                         piece.step == result.divergence->step;
      return piece.partial && !shown;
    });
  }
}

void find_altered_calls(const std::vector<RankEnding>& endings, CaseResult& result) {
  std::vector<std::vector<CallDigest>> calls;
  for (const RankEnding& ending : endings) calls.push_back(ending.digests);
  result.digests = digest_findings(calls);
}

std::string digests_message(const std::vector<DigestFinding>& digests) {
  const size_t more = digests.size() - 1;
  return digests.front().message + (more > 0 ? fmt::format("; so in {} calls after it", more) : "");
}

// The calls that the rank made before its row of the finding's tensor, or before the next one if it
// did not observe it.
int64_t calls_before(const Divergence& found, int64_t rank, const CaseResult& result) {
  const auto position = [](const ResultRow& row) {
    return golden_position(row.step, row.phase, row.order);
  };
  const ResultRow* next = nullptr;
  for (const RankReport& report : result.reports) {
    if (report.rank != rank) continue;
    for (const ResultRow& row : report.rows) {
      const bool is_after = position(row) >= position(found.worst);
      if (is_after && (next == nullptr || position(row) < position(*next))) next = &row;
    }
  }
  return next == nullptr ? std::numeric_limits<int64_t>::max() : next->calls_before;
}

// Whether the rank of the finding had made this call before it; of copies that differ, whether one
// of their ranks had. Of ranks that took no part in the call only the step tells.
bool is_before(const DigestFinding& digest, const CaseResult& result,
               const std::vector<RankEnding>& endings) {
  const Divergence& found = *result.divergence;
  if (digest.step != found.step) return digest.step < found.step;
  const bool are_copies = found.kind == ResultKind::kReplicas;
  const std::vector<int64_t> ranks = are_copies ? found.ranks : std::vector{found.worst.rank};
  bool took_part = false;
  for (const int64_t rank : ranks) {
    const std::vector<CallDigest>& calls = endings[static_cast<size_t>(rank)].digests;
    CallKeys keys;
    const auto made = std::ranges::find_if(
        calls, [&](const CallDigest& call) { return keys.next(call.call) == digest.key; });
    if (made == calls.end()) continue;
    took_part = true;
    const bool is_of_worst = rank == found.worst.rank && found.kind != ResultKind::kMissing;
    const int64_t before =
        is_of_worst ? found.worst.calls_before : calls_before(found, rank, result);
    if (made->calls_before < before) return true;
  }
  return !took_part;
}

struct Judged {
  const std::vector<RankEnding>& endings;
  std::optional<EndingVerdict> unreadable;  // result of read_reports()
  CaseResult& result;
  const std::vector<MicrobatchGolden>& microbatches;
  bool compares_values = false;
};

std::optional<EndingVerdict> of_divergence(const CaseResult& result) {
  if (!result.divergence) return {};
  const Divergence& found = *result.divergence;
  return EndingVerdict{Verdict::kMismatch,
                       is_metric(found.worst.kind) ? ResultKind::kMetrics : found.kind,
                       values_message(found, result.spec)};
}

std::optional<EndingVerdict> of_values(CaseResult& result, const std::vector<RankEnding>& endings,
                                       const std::vector<MicrobatchGolden>& microbatches) {
  const StepMeshes meshes(result.spec);
  const auto addends = settle_addends(meshes, result.reports);
  add_totals(result);
  result.divergence = first_divergence(result.spec, meshes, result.reports, addends, microbatches);
  if (!result.divergence) return {};
  // A call that delivered wrong data is a fact, which outranks hypotheses, if it came first.
  if (!result.digests.empty()) {
    std::string& likely = result.divergence->likely;
    if (is_before(result.digests.front(), result, endings)) {
      likely = digests_message(result.digests);
    } else {
      likely += (likely.empty() ? "later, " : "; later, ") + digests_message(result.digests);
    }
  }
  return of_divergence(result);
}

std::optional<EndingVerdict> of_digests(const CaseResult& result) {
  if (result.digests.empty()) return {};
  return EndingVerdict{Verdict::kMismatch, ResultKind::kDigest, digests_message(result.digests)};
}

std::optional<EndingVerdict> of_schedule(const CaseResult& result) {
  const std::string collectives = unexpected_collectives(result.spec, result.reports);
  if (collectives.empty()) return {};
  return EndingVerdict{Verdict::kMismatch, ResultKind::kSchedule, collectives};
}

std::optional<EndingVerdict> of_account(const CaseResult& result) {
  const std::string not_judged = not_judged_text(result.account);
  if (not_judged.empty()) return {};
  return EndingVerdict{Verdict::kInternal, ResultKind::kNotJudged, not_judged};
}

// A match in which every value is unresolved would show nothing at all.
std::optional<EndingVerdict> of_unresolved(const CaseResult& result) {
  const std::string unresolved = nothing_judged_text(result.account);
  if (unresolved.empty()) return {};
  return EndingVerdict{Verdict::kRefused, ResultKind::kUnresolved, unresolved};
}

// A match for which no rank observed anything would show nothing either.
std::optional<EndingVerdict> of_nothing(const CaseResult& result) {
  const CaseSpec& spec = result.spec;
  if (!spec.judged || observed_anything(result) || spec.expect.nothing_counted) return {};
  const char* why = is_model_workload(spec.workload)
                        ? "no stage of the case trains or scores to its end; add one, which shows "
                          "what a stage that fails has left"
                        : "no output and no gradient has an element; raise the sizes in options";
  return EndingVerdict{
      Verdict::kBadInput, ResultKind::kBadInput,
      fmt::format("nothing was compared: {}, or write expect: {{nothing_counted: true}}", why)};
}

// A match of zeros with zeros would show nothing of what trains or scores.
std::optional<EndingVerdict> of_grounds(const CaseResult& result) {
  if (result.spec.expect.nothing_counted) return {};
  const std::string empty = empty_text(result.account.grounds);
  if (empty.empty()) return {};
  return EndingVerdict{Verdict::kBadInput, ResultKind::kBadInput, empty};
}

// Whether a fault of the kind changes what a rank sends, receives or calls.
bool changes_calls(FaultKind kind) {
  using enum FaultKind;
  return kind == kSkip || kind == kDrop || kind == kDuplicate || kind == kRepeat ||
         kind == kCorrupt || kind == kStale;
}

// What ranks refuse after a fault that changed their data or calls lies not in the file: it made
// them throw.
std::optional<EndingVerdict> of_endings(const Judged& judged) {
  auto verdict = judge_endings(judged.endings, judged.result.spec.parallel.ranks());
  const auto has = [&](const auto& holds) { return std::ranges::any_of(judged.endings, holds); };
  const std::vector<FaultSpec>& faults = judged.result.spec.faults;
  const bool fired = has([&](const RankEnding& ending) {
    return std::ranges::any_of(ending.faults, [&](const FaultNote& note) {
      return note.fired && changes_calls(faults.at(static_cast<size_t>(note.index)).kind);
    });
  });
  const bool refused =
      verdict && (verdict->verdict == Verdict::kRefused || verdict->verdict == Verdict::kBadInput);
  if (refused && fired && !has(&RankEnding::shortage)) {
    verdict->verdict = Verdict::kFailed;
    verdict->kind = ResultKind::kThrew;
    const auto first = std::ranges::find(judged.endings, true, is_refusal);
    verdict->message = fmt::format("rank {}: {}", first->rank, first->message);
  }
  return verdict;
}

// The first non-empty verdict counts. The case matches only when all detectors return empty ones.
constexpr std::optional<EndingVerdict> (*kDetectors[])(Judged& judged) = {
    // A world that ended early holds values of unfinished work, which prove nothing.
    [](Judged& judged) { return of_endings(judged); },
    // Without every rank's report no later detector sees the whole case.
    [](Judged& judged) { return judged.unreadable; },
    // A wrong tensor names its position in the computation and the call that altered it.
    [](Judged& judged) {
      judged.compares_values = true;
      return of_values(judged.result, judged.endings, judged.microbatches);
    },
    // All values are right: a call altered data that is not compared.
    [](Judged& judged) { return of_digests(judged.result); },
    // All data arrived: only now the number of calls matters.
    [](Judged& judged) { return of_schedule(judged.result); },
    // Nothing that was judged is wrong: this detector checks that everything was judged.
    [](Judged& judged) { return of_account(judged.result); },
    // What was left out of the judgement has a reason. Is anything left in it?
    [](Judged& judged) { return of_unresolved(judged.result); },
    [](Judged& judged) { return of_nothing(judged.result); },
    // Everything was judged and is right: this detector checks that it is not all zeros.
    [](Judged& judged) { return of_grounds(judged.result); },
};

EndingVerdict first_verdict(Judged& judged) {
  for (const auto detector : kDetectors) {
    if (const auto verdict = detector(judged)) return *verdict;
  }
  return {Verdict::kMatch, ResultKind::kNone, ""};
}

}  // namespace

void add_totals(CaseResult& result) {
  result.account = account_of(result.spec, result.reports);
  result.tensors_compared = result.account.tensors;
  result.elements_compared = result.account.elements.judged;
  for (const RankReport& report : result.reports) {
    result.compare_seconds = std::max(result.compare_seconds, report.compare_seconds);
    for (const ResultRow& row : report.rows) {
      if (row.order < 0) continue;
      if (row.worst_ratio <= result.worst_ratio && !result.worst_tensor.empty()) continue;
      result.worst_ratio = row.worst_ratio;
      result.worst_tensor = row.name;
    }
  }
}

void conclude(CaseResult& result) {
  const auto wrong = of_divergence(result), left_out = of_account(result);
  const EndingVerdict right{Verdict::kMatch, ResultKind::kNone, ""};
  take(result, wrong ? *wrong : left_out.value_or(right));
}

CaseResult judge(const CaseSpec& spec, const std::vector<RankEnding>& endings,
                 const std::vector<MicrobatchGolden>& microbatches) {
  CaseResult result;
  result.spec = spec;
  for (const RankEnding& ending : endings) {
    // Drops the bytes, which are read into the reports, and the digests, whose errors
    // find_altered_calls() keeps.
    result.endings.push_back({.rank = ending.rank,
                              .kind = ending.kind,
                              .message = ending.message,
                              .last_call = ending.last_call,
                              .bytes = "",
                              .faults = ending.faults,
                              .printed = ending.printed});
  }
  result.replay = replay_command(spec);
  Judged judged{endings, read_reports(endings, result), result, microbatches};
  find_altered_calls(endings, result);
  take(result, first_verdict(judged));
  if (!judged.compares_values) {
    add_totals(result);
    result.account.not_judged.clear();  // a world that ended early claims nothing
  }
  drop_addends(result);
  result.outcome = fault_outcome(result);
  const std::string never_fired = faults_that_never_fired(result);
  if (result.verdict == Verdict::kMatch && !never_fired.empty()) {
    take(result, {Verdict::kBadInput, ResultKind::kFault, never_fired});
  }
  compare_with_expectation(result);
  return result;
}

int exit_status(const std::vector<CaseResult>& results, bool no_unresolved) {
  const auto any = [&](const auto& applies) { return std::ranges::any_of(results, applies); };
  const auto got = [&](Verdict verdict) {
    return any(
        [&](const CaseResult& result) { return !result.as_expected && result.verdict == verdict; });
  };
  if (any([](const CaseResult& result) { return result.verdict == Verdict::kInternal; })) return 5;
  if (any([](const CaseResult& result) { return result.verdict == Verdict::kBadInput; })) return 2;
  if (got(Verdict::kFailed)) return 3;
  const bool unresolved =
      any([](const CaseResult& result) { return !result.account.unresolved.empty(); });
  if (got(Verdict::kMismatch) || got(Verdict::kMatch) || (no_unresolved && unresolved)) return 1;
  return got(Verdict::kRefused) ? 4 : 0;
}

}  // namespace shardproof::sim::judge
