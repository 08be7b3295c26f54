// Which rank of a pipeline runs which stage. A pipeline of p ranks with v chunks on each has p*v
// stages, numbered in the order of the model: activations go from stage s to s+1, gradients from s
// to s-1.
//
//   p = 2, v = 2    loop: rank 0 has stages 0 2      V: rank 0 has stages 0 3
//                         rank 1 has stages 1 3         rank 1 has stages 1 2
#pragma once

#include <cstdint>

#include "base/training_choices.h"

namespace shardproof {

// A rank (its coordinate on pp) and one of its chunks.
struct StagePlace {
  int64_t rank = 0;
  int64_t chunk = 0;
  bool operator==(const StagePlace&) const = default;
};

// kLoop: stage s is chunk s / ranks of rank s % ranks. kV, for two chunks: chunk 0 of the ranks in
// ascending order, then chunk 1 in descending order, so that the first and the last stage share
// rank 0. Source: pytorch/pytorch torch/distributed/pipelining/_utils.py,
// generate_stage_to_rank_mapping.
struct Placement {
  enum class Shape { kLoop, kV };
  int64_t ranks = 1;
  int64_t chunks = 1;
  Shape shape = Shape::kLoop;

  int64_t stages() const { return ranks * chunks; }
  int64_t stage_of(StagePlace place) const;
  StagePlace place_of(int64_t stage) const;
  // Whether the tensor between `stage` and the next one is a message.
  bool sends_after(int64_t stage) const;
  bool operator==(const Placement&) const = default;
};

// A schedule with its sizes. check_schedule (tables.h) says which ones there are.
struct Pipeline {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int64_t ranks = 1;
  int64_t chunks = 1;  // of each rank
  // Interleaved, and zb1p with two or more chunks: how many microbatches go through one chunk
  // before the rank turns to the next. 0: as many as ranks.
  int64_t group = 0;

  Placement placement() const;
  // Whether weight gradients are actions of their own (Action::Kind::kWeights).
  bool splits_backward() const;
};

}  // namespace shardproof
