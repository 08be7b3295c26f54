// Enumerates the schedules of a case that can differ in their results, each once.
//
// A run under an exact schedule reports its nodes: the moments at which it could have gone on in
// several ways. Its schedule says at which of them it took another way than the first. The search
// begins with the schedule that takes the first way everywhere; each run gives the schedules that
// leave it at one node after its last deviation, and those with the fewest deviations run first.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace shardproof::sim {

// A node, counted from 0, and the way that is taken there, from 1; others take way 0.
struct ScheduleDeviation {
  int64_t node = 0, way = 0;
};

// Exact schedules lie above those that are drawn from a seed (world.schedule).
inline constexpr int64_t kFirstExactSchedule = 1'000'000'001;
inline bool is_exact_schedule(int64_t schedule) { return schedule >= kFirstExactSchedule; }

// The schedule with these deviations, by ascending node; nothing when they do not fit in a number.
std::optional<int64_t> exact_schedule(const std::vector<ScheduleDeviation>& deviations);
std::vector<ScheduleDeviation> deviations_of(int64_t schedule);

// What a run under an exact schedule reports.
struct ScheduleTrace {
  std::vector<int64_t> ways = {};  // of each node: how many there were
  bool redundant = false;          // from some moment on it repeats another run
};
std::string trace_text(const ScheduleTrace& trace);
ScheduleTrace trace_from_text(const std::string& text);

class ScheduleSearch {
 public:
  // The schedule to run next; nothing when none is left.
  std::optional<int64_t> next();
  void add(int64_t schedule, const ScheduleTrace& trace);

  int64_t explored() const { return explored_; }    // schedules that can differ
  int64_t redundant() const { return redundant_; }  // runs that repeated another
  bool complete() const { return open_.empty() && !too_deep_; }

 private:
  std::deque<int64_t> open_ = {kFirstExactSchedule};
  int64_t explored_ = 0, redundant_ = 0;
  bool too_deep_ = false;
};

}  // namespace shardproof::sim
