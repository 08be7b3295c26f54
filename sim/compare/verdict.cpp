#include "sim/compare/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/error.h"
#include "sim/compare/endings.h"
#include "sim/compare/expectations.h"
#include "sim/compare/fault_effect.h"
#include "sim/compare/findings.h"
#include "sim/compare/replay.h"

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
  std::set<std::tuple<int64_t, int, int64_t>> tensors;
  for (const RankReport& report : result.reports) {
    result.compare_seconds = std::max(result.compare_seconds, report.compare_seconds);
    for (const ResultRow& row : report.rows) {
      if (row.order < 0) continue;
      tensors.emplace(row.step, static_cast<int>(row.phase), row.order);
      result.elements_compared += row.count;
      if (row.worst_ratio <= result.worst_ratio && !result.worst_tensor.empty()) continue;
      result.worst_ratio = row.worst_ratio;
      result.worst_tensor = row.name;
    }
  }
  result.tensors_compared = static_cast<int64_t>(tensors.size());
}

std::string values_message(const Divergence& found, const CaseSpec& spec) {
  std::string message = fmt::format("{} of step {} ({}): {}", found.tensor, found.step,
                                    phase_name(found.phase), found.pattern);
  if (!found.likely.empty()) message += "; likely " + found.likely;
  if (found.kind == "values" && found.worst.rounding_only) {
    message += fmt::format("; if the same case matches in float64, this is rounding in {}",
                           spec.precision);
  }
  return message;
}

void find_altered_calls(const std::vector<RankEnding>& endings, CaseResult& result) {
  std::vector<std::vector<CallDigest>> calls;
  for (const RankEnding& ending : endings) calls.push_back(ending.digests);
  result.digests = digest_findings(calls);
}

void judge_values(CaseResult& result) {
  result.divergence = first_divergence(result.spec, result.reports);
  if (result.divergence) {
    const Divergence& found = *result.divergence;
    result.verdict = "mismatch";
    result.kind = found.kind;
    if (found.tensor.compare(0, 7, "metric.") == 0) result.kind = "metrics";
    result.message = values_message(found, result.spec);
    return;
  }
  result.verdict = "match";
  if (!result.digests.empty()) {
    const size_t more = result.digests.size() - 1;
    result.verdict = "mismatch";
    result.kind = "digest";
    result.message = result.digests.front().message;
    if (more > 0) result.message += fmt::format("; so in {} calls after it", more);
    return;
  }
  const std::string collectives = unexpected_collectives(result.spec, result.reports);
  if (collectives.empty()) return;
  result.verdict = "mismatch";
  result.kind = "schedule";
  result.message = collectives;
}

}  // namespace

CaseResult judge(const CaseSpec& spec, const std::vector<RankEnding>& endings) {
  CaseResult result;
  result.spec = spec;
  for (const RankEnding& ending : endings) {
    result.endings.push_back(ending);
    result.endings.back().bytes = {};    // they are read into the reports
    result.endings.back().digests = {};  // find_altered_calls() has what is wrong with them
  }
  result.replay = replay_command(spec);
  EndingVerdict ending = judge_endings(endings);
  const EndingVerdict unreadable = read_reports(endings, result);
  if (ending.verdict.empty()) ending = unreadable;
  if (ending.verdict.empty()) ending = judge_findings(result.reports);
  add_totals(result);
  find_altered_calls(endings, result);
  if (!ending.verdict.empty()) {
    take(result, ending);
  } else {
    judge_values(result);
  }
  result.outcome = fault_outcome(result);
  const std::string never_fired = faults_that_never_fired(result);
  if (result.verdict == "match" && !never_fired.empty()) {
    take(result, {"bad_input", "fault", never_fired});
  }
  compare_with_expectation(result);
  return result;
}

int exit_status(const std::vector<CaseResult>& results) {
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
  if (came("mismatch") || came("match")) return 1;
  return came("refused") ? 4 : 0;
}

}  // namespace shardproof::sim
