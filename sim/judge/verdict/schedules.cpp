#include "sim/judge/verdict/schedules.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <tuple>

#include "sim/judge/verdict/replay.h"

namespace shardproof::sim::judge {
namespace {

const std::string kLabel = "schedule=";

std::string name_with_schedule(std::string name, int64_t schedule) {
  const std::string label = fmt::format("{}{}]", kLabel, schedule);
  if (!name.ends_with(']')) return name + "[" + label;
  name.back() = ',';
  return name + label;
}

// Where the label with its "[" or "," begins in a name that ends with it, and its number.
struct ScheduleLabel {
  size_t begin = std::string::npos;
  int64_t schedule = 0;
};

ScheduleLabel schedule_label(const std::string& name) {
  const size_t label = name.rfind(kLabel);
  if (label == name.npos || label == 0 || !name.ends_with(']')) return {};
  const char before = name[label - 1];
  if (before != '[' && before != ',') return {};
  ScheduleLabel found{.begin = label - 1};
  const char* end = name.data() + name.size() - 1;
  const auto [rest, error] =
      std::from_chars(name.data() + label + kLabel.size(), end, found.schedule);
  return error == std::errc() && rest == end && found.schedule > 0 ? found : ScheduleLabel{};
}

// A race must not hide that a case is internal or bad input.
bool is_judged(Verdict verdict) {
  return verdict == Verdict::kMatch || verdict == Verdict::kMismatch;
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
  const size_t begin = schedule_label(name).begin;
  if (begin == name.npos) return name;
  return name.substr(0, begin) + (name[begin] == '[' ? "" : "]");
}

int64_t schedule_of_name(const std::string& name) { return schedule_label(name).schedule; }

int64_t ScheduleComparison::add(CaseResult& result) {
  const WorldSpec& world = result.spec.world;
  if (world.schedule == 0 || world.backend != Backend::kEmulated) return 0;
  if (!is_judged(result.verdict) || !all_finished(result)) return world.schedule;
  Seen seen = seen_in(result);
  CaseSpec plain = result.spec;
  plain.name = name_without_schedule(plain.name);
  const auto [first, is_new] = first_.try_emplace(plain.name, std::move(seen));
  if (is_new) return world.schedule;
  const std::string how = difference(first->second, seen, result);
  if (how.empty()) {
    ++first->second.equal;
    return world.schedule;
  }
  first->second.differs = true;
  result.message = how + (result.message.empty() ? "" : "; " + result.message);
  result.verdict = Verdict::kMismatch;
  result.kind = ResultKind::kRace;
  result.unexpected = "the values depend on the schedule";
  result.as_expected = false;
  result.replay = replay_command(plain);
  return std::max(first->second.schedule, seen.schedule);
}

std::vector<std::string> ScheduleComparison::equal() const {
  std::vector<std::string> lines;
  for (const auto& [name, seen] : first_) {
    if (seen.differs || seen.equal < 2) continue;
    lines.push_back(
        fmt::format("{}: the values of {} schedules are equal to the bit", name, seen.equal));
  }
  return lines;
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
    if (place == count && one.size() == other.size()) continue;
    if (place == count) {
      return fmt::format("rank {} has {} values under schedule {} and {} under {}",
                         result.reports[rank].rank, one.size(), first.schedule, other.size(),
                         second.schedule);
    }
    const Value& value = other[place];
    const std::tuple when{value.step, place, rank};
    if (!found.empty() && earliest < when) continue;
    earliest = when;
    const RankReport& report = result.reports[rank];
    // The calls since the last equal value; without any, the last one before that.
    const int64_t since = place == 0 ? 0 : other[place - 1].calls_before;
    const int64_t call = std::max<int64_t>(0, std::min(since, value.calls_before - 1));
    const auto [lower, higher] = std::minmax(first.schedule, second.schedule);
    found = fmt::format("{} of step {} on rank {} has other values under schedule {} than under {}",
                        value.name, value.step, report.rank, higher, lower);
    if (value.calls_before > 0 && call < static_cast<int64_t>(report.calls.size())) {
      found += fmt::format(", from {} on", report.calls[static_cast<size_t>(call)]);
    }
  }
  return found;
}

}  // namespace shardproof::sim::judge
