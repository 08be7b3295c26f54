#include "parallel/pp/placement.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/pipeline_schedules.h"

namespace shardproof {

int64_t Placement::stage_of(StagePlace place) const {
  SHARDPROOF_ASSERT(
      place.rank >= 0 && place.rank < ranks && place.chunk >= 0 && place.chunk < chunks,
      fmt::format("chunk {} of rank {} in a pipeline of {} ranks with {} chunks", place.chunk,
                  place.rank, ranks, chunks));
  if (shape == Shape::kLoop) return place.chunk * ranks + place.rank;
  return place.chunk == 0 ? place.rank : 2 * ranks - 1 - place.rank;
}

StagePlace Placement::place_of(int64_t stage) const {
  SHARDPROOF_ASSERT(stage >= 0 && stage < stages(),
                    fmt::format("stage {} in a pipeline of {} stages", stage, stages()));
  if (shape == Shape::kLoop) return {stage % ranks, stage / ranks};
  if (stage < ranks) return {stage, 0};
  return {2 * ranks - 1 - stage, 1};
}

bool Placement::sends_after(int64_t stage) const {
  return stage + 1 < stages() && place_of(stage).rank != place_of(stage + 1).rank;
}

Placement Pipeline::placement() const {
  return {ranks, chunks, traits_of(schedule).in_v ? Placement::Shape::kV : Placement::Shape::kLoop};
}

bool Pipeline::splits_backward() const { return traits_of(schedule).splits_backward; }

}  // namespace shardproof
