#include "sim/judge/verdict/expectations.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "sim/case/names.h"
#include "sim/judge/verdict/fault_effect.h"
#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim::judge {

namespace {

// "ranks 0, 2 made 3 all_reduce along tp", for each count that differs from the expected one.
std::string other_counts(const std::vector<RankReport>& reports, int64_t world_size,
                         const std::string& axis, const std::string& op, int64_t expected) {
  std::map<int64_t, std::vector<int64_t>> ranks;
  const std::string group = group_of_axis(axis);
  for (const RankReport& report : reports) {
    if (report.rank >= world_size) continue;  // a rank that a policy refits has its own mesh
    const auto count = report.call_counts.find({group, op});
    ranks[count == report.call_counts.end() ? 0 : count->second].push_back(report.rank);
  }
  std::string text;
  for (const auto& [count, makers] : ranks) {
    if (count == expected) continue;
    text += fmt::format("{}{} {} made {} {} along {}, the scenario expects {}",
                        text.empty() ? "" : "\n", makers.size() > 1 ? "ranks" : "rank",
                        fmt::join(makers, ", "), count, op, axis, expected);
  }
  return text;
}

}  // namespace

bool observed_anything(const CaseResult& result) { return result.account.elements.judged > 0; }

std::string unexpected_collectives(const CaseSpec& spec, const std::vector<RankReport>& reports) {
  if (!spec.expect.collectives.is_object()) return "";
  const int64_t world_size = spec.parallel.mesh().world_size();
  std::vector<std::string> texts;
  for (const auto& [axis, ops] : spec.expect.collectives.items()) {
    for (const auto& [op, count] : ops.items()) {
      std::string text = other_counts(reports, world_size, axis, op, count.get<int64_t>());
      if (!text.empty()) texts.push_back(std::move(text));
    }
  }
  return fmt::format("{}", fmt::join(texts, "\n"));
}

void compare_with_expectation(CaseResult& result) {
  const ExpectSpec& expect = result.spec.expect;
  const std::string kind = name_of(result.kind);
  const std::string got = name_of(result.verdict) + (kind.empty() ? "" : " (" + kind + ")");
  // Ranks that were ended show nothing of what the scenario expects to fail.
  const bool cut_short = result.kind == ResultKind::kAborted && expect.kind != kind;
  result.unexpected.clear();
  if (result.verdict != expect.verdict || cut_short) {
    result.unexpected = fmt::format("expected {}, got {}", expect.verdict, got);
  } else if (!expect.kind.empty() && expect.kind != kind) {
    result.unexpected = fmt::format("expected {} ({}), got {}", expect.verdict, expect.kind, got);
  } else if (!expect.tensor.empty() &&
             (!result.divergence || result.divergence->tensor != expect.tensor)) {
    result.unexpected =
        fmt::format("expected {} first in {}, got {}", expect.verdict, expect.tensor,
                    result.divergence ? result.divergence->tensor : std::string("no tensor"));
  } else if (!expect.detector.empty() && expect.detector != first_detector(result.outcome)) {
    result.unexpected = fmt::format("expected {} seen first by {}, got {}", expect.verdict,
                                    expect.detector, detectors_text(result.outcome));
  } else if (!expect.message.empty() && result.message.find(expect.message) == std::string::npos) {
    result.unexpected = fmt::format("expected {} with '{}' in its message, got: {}", expect.verdict,
                                    expect.message, result.message);
  } else if (expect.nothing_counted && result.verdict == Verdict::kMatch &&
             observed_anything(result) && empty_text(result.account.grounds).empty()) {
    result.unexpected = "expected that nothing counts, but this match rests on " +
                        grounds_text(result.account.grounds);
  }
  if (result.unexpected.empty()) result.unexpected = faults_that_never_fired(result);
  result.as_expected = result.unexpected.empty();
}

namespace {

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 6; ++i) text += (i > 0 ? ", " : "") + names[i];
  if (names.size() > 6) text += fmt::format(" and {} more", names.size() - 6);
  return text;
}

}  // namespace

std::string partial_line(const FileJudgement& judgement, const std::string& path, bool allowed) {
  const std::vector<std::string>& lacking = judgement.lacking;
  if (lacking.empty()) return "";
  const std::string text = fmt::format("{} of {} tensors were judged: {} does not hold {}",
                                       judgement.demanded - static_cast<int64_t>(lacking.size()),
                                       judgement.demanded, path, listed(lacking));
  if (allowed || judgement.result.verdict != Verdict::kMatch) return text + "\n";
  throw_bad_input(text, "write the rest too, or add --allow-partial");
}

}  // namespace shardproof::sim::judge
