#include "sim/judge/verdict/verdict.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "sim/judge/diff/addends.h"
#include "sim/judge/explain/diagnose.h"
#include "sim/judge/verdict/endings.h"
#include "sim/judge/verdict/expectations.h"
#include "sim/judge/verdict/fault_effect.h"
#include "sim/judge/verdict/findings.h"
#include "sim/judge/verdict/replay.h"

namespace shardproof::sim {
namespace {

void take(CaseResult& result, const EndingVerdict& verdict) {
  result.verdict = verdict.verdict;
  result.kind = verdict.kind;
  result.message = verdict.message;
}

// Reports of ranks that finished; a report that cannot be read is our own fault.
EndingVerdict read_reports(const std::vector<RankEnding>& endings, CaseResult& result) {
  for (const RankEnding& ending : endings) {
    if (ending.kind != "finished") continue;
    try {
      result.reports.push_back(decode_rank_report(ending.bytes));
    } catch (const InternalError& error) {
      return {"internal", "internal", fmt::format("rank {}: {}", ending.rank, error.what())};
    }
  }
  return {};
}

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

std::string values_message(const Divergence& found, const CaseSpec& spec) {
  std::string message = fmt::format("{} of step {} ({}): {}", found.tensor, found.step,
                                    phase_name(found.phase), found.pattern);
  if (!found.likely.empty()) message += "; likely " + found.likely;
  if (found.kind == "values" && may_be_rounding(found.worst)) {
    message += fmt::format("; if the same case matches in float64, this is rounding in {}",
                           spec.precision);
  }
  return message;
}

// They may be large; those of the divergence are kept for the files of the run.
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

// The one place where a case comes to match: nothing is wrong, and the account leaves nothing out.
EndingVerdict verdict_on_values(const CaseResult& result) {
  if (result.divergence) {
    const bool metric = result.divergence->tensor.starts_with("metric.");
    return {"mismatch", metric ? "metrics" : result.divergence->kind,
            values_message(*result.divergence, result.spec)};
  }
  if (!result.digests.empty()) return {"mismatch", "digest", digests_message(result.digests)};
  const std::string collectives = unexpected_collectives(result.spec, result.reports);
  if (!collectives.empty()) return {"mismatch", "schedule", collectives};
  const std::string not_judged = not_judged_text(result.account);
  if (!not_judged.empty()) return {"internal", "not_judged", not_judged};
  return {"match", "", ""};
}

}  // namespace

CaseResult judge(const CaseSpec& spec, const std::vector<RankEnding>& endings) {
  CaseResult result;
  result.spec = spec;
  for (const RankEnding& ending : endings) {
    // Without the bytes, which are read into the reports, and without the digests, of which
    // find_altered_calls() keeps what is wrong.
    result.endings.push_back({.rank = ending.rank,
                              .kind = ending.kind,
                              .message = ending.message,
                              .last_call = ending.last_call,
                              .bytes = "",
                              .faults = ending.faults,
                              .printed = ending.printed});
  }
  result.replay = replay_command(spec);
  EndingVerdict ending = judge_endings(endings);
  const EndingVerdict unreadable = read_reports(endings, result);
  if (ending.verdict.empty()) ending = unreadable;
  if (ending.verdict.empty()) ending = judge_findings(result.reports);
  find_altered_calls(endings, result);
  if (ending.verdict.empty()) {
    const StepMeshes meshes(spec);
    const auto addends = settle_addends(meshes, result.reports);
    add_totals(result);
    result.divergence = first_divergence(spec, meshes, result.reports, addends);
    ending = verdict_on_values(result);
  } else {
    add_totals(result);
    result.account.not_judged.clear();  // a world that ended early claims nothing
  }
  take(result, ending);
  drop_addends(result);
  result.outcome = fault_outcome(result);
  const std::string never_fired = faults_that_never_fired(result);
  if (result.verdict == "match" && !never_fired.empty()) {
    take(result, {"bad_input", "fault", never_fired});
  }
  compare_with_expectation(result);
  return result;
}

int exit_status(const std::vector<CaseResult>& results, bool no_unresolved) {
  const auto any = [&](const auto& applies) {
    return std::any_of(results.begin(), results.end(), applies);
  };
  const auto came = [&](const std::string& verdict) {
    return any(
        [&](const CaseResult& result) { return !result.as_expected && result.verdict == verdict; });
  };
  if (any([](const CaseResult& result) { return result.verdict == "internal"; })) return 5;
  if (any([](const CaseResult& result) { return result.verdict == "bad_input"; })) return 2;
  if (came("failed")) return 3;
  const bool unresolved =
      any([](const CaseResult& result) { return !result.account.unresolved.empty(); });
  if (came("mismatch") || came("match") || (no_unresolved && unresolved)) return 1;
  return came("refused") ? 4 : 0;
}

}  // namespace shardproof::sim
