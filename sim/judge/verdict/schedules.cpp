#include "sim/judge/verdict/schedules.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace shardproof::sim {
namespace {

const std::string kLabel = "schedule=";

std::string name_with_schedule(std::string name, int64_t schedule) {
  const std::string label = fmt::format("{}{}]", kLabel, schedule);
  if (!name.ends_with(']')) return name + "[" + label;
  name.back() = ',';
  return name + label;
}

bool all_finished(const CaseResult& result) {
  return std::all_of(result.endings.begin(), result.endings.end(),
                     [](const RankEnding& ending) { return ending.kind == ResultKind::kFinished; });
}

}  // namespace

std::vector<CaseSpec> with_schedules(std::vector<CaseSpec> cases, int64_t count) {
  std::vector<CaseSpec> drawn;
  for (CaseSpec& spec : cases) {
    if (spec.world.backend != Backend::kEmulated || count == 0) {
      drawn.push_back(std::move(spec));
      continue;
    }
    for (int64_t schedule = 1; schedule <= count; ++schedule) {
      drawn.push_back(spec);
      drawn.back().name = name_with_schedule(spec.name, schedule);
      drawn.back().world.schedule = schedule;
    }
  }
  return drawn;
}

std::string name_without_schedule(const std::string& name) {
  const size_t label = name.rfind(kLabel);
  if (label == name.npos || label == 0) return name;
  const std::string rest = name.substr(0, label - 1);  // without "[" or ","
  return name[label - 1] == '[' ? rest : rest + "]";
}

void ScheduleComparison::add(CaseResult& result) {
  const WorldSpec& world = result.spec.world;
  if (world.schedule == 0 || world.backend != Backend::kEmulated || !all_finished(result)) return;
  Seen seen = seen_in(result);
  const auto [first, is_new] =
      first_.try_emplace(name_without_schedule(result.spec.name), std::move(seen));
  if (is_new) return;
  const std::string how = difference(first->second, seen, result);
  if (how.empty()) return;
  result.message = how + (result.message.empty() ? "" : "; " + result.message);
  result.verdict = Verdict::kMismatch;
  result.kind = ResultKind::kRace;
  result.unexpected = "the values depend on the schedule";
  result.as_expected = false;
}

ScheduleComparison::Seen ScheduleComparison::seen_in(const CaseResult& result) {
  Seen seen{.schedule = result.spec.world.schedule, .ranks = {}};
  for (const RankReport& report : result.reports) {
    std::vector<Value>& values = seen.ranks.emplace_back();
    for (const ResultRow& row : report.rows) {
      values.push_back({row.name, row.step, row.digest, row.calls_before});
    }
  }
  return seen;
}

std::string ScheduleComparison::difference(const Seen& first, const Seen& second,
                                           const CaseResult& result) {
  std::tuple<int64_t, size_t, size_t> earliest;  // step, place in the rank's list, rank
  std::string found;
  const size_t ranks = std::min(first.ranks.size(), second.ranks.size());
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto &one = first.ranks[rank], &other = second.ranks[rank];
    const size_t count = std::min(one.size(), other.size());
    size_t place = 0;
    while (place < count && one[place].name == other[place].name &&
           one[place].digest == other[place].digest) {
      ++place;
    }
    if (place == count) continue;
    const Value& value = other[place];
    const std::tuple when{value.step, place, rank};
    if (!found.empty() && earliest < when) continue;
    earliest = when;
    const RankReport& report = result.reports[rank];
    // The calls since the last equal value; without any, the last one before that.
    const int64_t since = place == 0 ? 0 : other[place - 1].calls_before;
    const int64_t call = std::max<int64_t>(0, std::min(since, value.calls_before - 1));
    found = fmt::format("{} of step {} on rank {} has other values under schedule {} than under {}",
                        value.name, value.step, report.rank, second.schedule, first.schedule);
    if (value.calls_before > 0 && call < static_cast<int64_t>(report.calls.size())) {
      found += fmt::format(", from {} on", report.calls[static_cast<size_t>(call)]);
    }
  }
  return found;
}

}  // namespace shardproof::sim
