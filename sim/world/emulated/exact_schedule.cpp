#include "sim/world/emulated/exact_schedule.h"

#include <algorithm>

#include "base/error.h"

namespace shardproof::sim::world {

bool ExactSchedule::overlap(const ScheduleStep& one, const ScheduleStep& other) const {
  for (const MemoryRange& a : one.memory) {
    for (const MemoryRange& b : other.memory) {
      if ((a.written || b.written) && a.begin < b.end && b.begin < a.end) return true;
    }
  }
  return false;
}

bool ExactSchedule::commute(const ScheduleStep& one, const ScheduleStep& other) const {
  if (one.is_effect && other.is_effect) return !overlap(one, other);
  if (!one.is_effect && !other.is_effect) return one.id != other.id;
  const ScheduleStep &call = one.is_effect ? one : other, &rank = one.is_effect ? other : one;
  return strict_ || call.memory.empty() ||
         std::find(call.ranks.begin(), call.ranks.end(), rank.id) == call.ranks.end();
}

bool ExactSchedule::sleeps(const ScheduleStep& step) const {
  return std::any_of(sleeping_.begin(), sleeping_.end(), [&](const ScheduleStep& one) {
    return one.is_effect == step.is_effect && one.id == step.id;
  });
}

int64_t ExactSchedule::way_at(int64_t node) const {
  for (const ScheduleDeviation& one : deviations_) {
    if (one.node == node) return one.way;
  }
  return 0;
}

ScheduleStep ExactSchedule::take(const ScheduleStep& step) {
  std::erase_if(sleeping_, [&](const ScheduleStep& one) { return !commute(one, step); });
  return step;
}

ScheduleStep ExactSchedule::choose(const std::vector<ScheduleStep>& steps) {
  SHARDPROOF_ASSERT(!steps.empty(), "something can happen");
  if (trace_.redundant) return steps.front();
  const auto first =
      std::find_if(steps.begin(), steps.end(), [](const ScheduleStep& step) { return step.first; });
  if (first != steps.end()) {
    if (!sleeps(*first)) return take(*first);
    trace_.redundant = true;
    return *first;
  }
  std::vector<ScheduleStep> ways;
  for (const ScheduleStep& step : steps) {
    if (!sleeps(step)) ways.push_back(step);
  }
  if (ways.empty()) {
    trace_.redundant = true;
    return steps.front();
  }
  if (ways.size() == 1) return take(ways.front());
  const int64_t way = way_at(std::ssize(trace_.ways));
  trace_.ways.push_back(std::ssize(ways));
  SHARDPROOF_ASSERT(way < std::ssize(ways), "a schedule is of the same program");
  sleeping_.insert(sleeping_.end(), ways.begin(), ways.begin() + way);
  return take(ways[static_cast<size_t>(way)]);
}

}  // namespace shardproof::sim::world
