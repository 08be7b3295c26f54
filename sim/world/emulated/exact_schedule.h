// Decides what happens next in a run whose schedule is one of an enumeration.
//
// What can happen next is that a rank runs to its next call, or that a call takes effect. Two such
// steps commute, so that their order changes nothing, unless they are of one rank and a call that
// it is in, or of two calls that use the same memory. Orders that differ by exchanges of steps that
// commute are one schedule. Two sound reductions leave one run of each:
//
//   persistent sets   a step that commutes with all that can happen before it is taken at once
//   sleep sets        a step that an earlier way at a node began with is not taken again until one
//                     happens that does not commute with it
//
// Sources: Godefroid, Partial-Order Methods for the Verification of Concurrent Systems (LNCS 1032,
// 1996), chapters 4 and 5; Flanagan and Godefroid, Dynamic Partial-Order Reduction for Model
// Checking Software (POPL 2005).
#pragma once

#include <cstdint>
#include <vector>

#include "sim/case/schedule_search.h"

namespace shardproof::sim::world {

// Memory of a call, from its first byte to behind its last.
struct MemoryRange {
  uintptr_t begin = 0, end = 0;
  bool written = false;
};

struct ScheduleStep {
  bool is_effect = false;           // else a rank runs
  int64_t id = 0;                   // the rank, or the number of the call
  std::vector<int64_t> ranks = {};  // of a call: its members
  std::vector<MemoryRange> memory = {};
  bool first = false;  // it commutes with all that can happen before it
};

class ExactSchedule {
 public:
  // `strict`: what ranks hold is kept apart from what calls use, so that ranks and calls commute.
  ExactSchedule(int64_t schedule, bool strict)
      : deviations_(deviations_of(schedule)), strict_(strict) {}

  // One of the steps, of which there is at least one.
  ScheduleStep choose(const std::vector<ScheduleStep>& steps);
  bool overlap(const ScheduleStep& one, const ScheduleStep& other) const;
  bool strict() const { return strict_; }
  const ScheduleTrace& trace() const { return trace_; }

 private:
  bool sleeps(const ScheduleStep& step) const;
  bool commute(const ScheduleStep& one, const ScheduleStep& other) const;
  int64_t way_at(int64_t node) const;
  ScheduleStep take(const ScheduleStep& step);

  std::vector<ScheduleDeviation> deviations_;
  bool strict_;
  std::vector<ScheduleStep> sleeping_;
  ScheduleTrace trace_;
};

}  // namespace shardproof::sim::world
