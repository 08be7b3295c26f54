// What follows from the schedule of a pipeline besides its table (src/parallel/pp/tables.h): a row
// for each, in the order of PipelineSchedule. docs/adding/schedule.md says how to add one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/training_choices.h"

namespace shardproof {

inline constexpr int64_t kAnyChunks = std::numeric_limits<int64_t>::max();

struct ScheduleTraits {
  PipelineSchedule schedule;
  int64_t least_chunks = 1, most_chunks = kAnyChunks;  // of the model on each rank
  // What to do where a rank has another number of chunks: "give 1 chunk, or ..".
  const char* fix_of_chunks = "";
  bool in_v = false;             // two chunks in a V (Placement::Shape::kV)
  bool splits_backward = false;  // weight gradients are actions of their own
  bool groups = false;           // microbatches go through two or more chunks in groups
  bool descends = false;         // backwards run in descending order of the microbatches
  // A step has at least so many microbatches for each rank. With fewer, forwards alone have the
  // order of `with_fewer`. 0: a step takes any number.
  int64_t microbatches_of_rank = 0;
  PipelineSchedule with_fewer = PipelineSchedule::k1F1B;
};

inline constexpr std::array kScheduleTraits = {
    ScheduleTraits{.schedule = PipelineSchedule::kGPipe,
                   .most_chunks = 1,
                   .fix_of_chunks = "give 1 chunk, or take bfs, which takes several"},
    ScheduleTraits{.schedule = PipelineSchedule::k1F1B,
                   .most_chunks = 1,
                   .fix_of_chunks = "give 1 chunk, or take interleaved, which takes several"},
    ScheduleTraits{.schedule = PipelineSchedule::kInterleaved,
                   .least_chunks = 2,
                   .fix_of_chunks = "give 2 or more chunks, or take 1f1b for 1",
                   .groups = true,
                   .microbatches_of_rank = 1,
                   .with_fewer = PipelineSchedule::kBreadthFirst},
    ScheduleTraits{.schedule = PipelineSchedule::kBreadthFirst, .descends = true},
    ScheduleTraits{.schedule = PipelineSchedule::kZb1p, .splits_backward = true, .groups = true},
    ScheduleTraits{.schedule = PipelineSchedule::kZbV,
                   .least_chunks = 2,
                   .most_chunks = 2,
                   .fix_of_chunks = "give 2 chunks, or take zb1p, which takes any number",
                   .in_v = true,
                   .splits_backward = true},
    ScheduleTraits{.schedule = PipelineSchedule::kDualPipeV,
                   .least_chunks = 2,
                   .most_chunks = 2,
                   .fix_of_chunks = "give 2 chunks, or take zb1p, which takes any number",
                   .in_v = true,
                   .splits_backward = true,
                   .microbatches_of_rank = 2,
                   .with_fewer = PipelineSchedule::kZbV},
};

static_assert(kScheduleTraits.size() == names_of(PipelineSchedule()).size());
static_assert([] {
  for (size_t i = 0; i < kScheduleTraits.size(); ++i) {
    if (kScheduleTraits[i].schedule != static_cast<PipelineSchedule>(i)) return false;
  }
  return true;
}());

constexpr const ScheduleTraits& traits_of(PipelineSchedule schedule) {
  return kScheduleTraits[static_cast<size_t>(schedule)];
}

}  // namespace shardproof
