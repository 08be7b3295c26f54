// The order in which divergences count: by step; within a step forward, recomputed, backward, step;
// within a phase in the order in which the golden ran.
#pragma once

#include <cstdint>
#include <tuple>

#include "observe/phase.h"

namespace shardproof::sim::judge {

using GoldenPosition = std::tuple<int64_t, int, int64_t>;

inline GoldenPosition golden_position(int64_t step, Phase phase, int64_t order) {
  int place = 0;  // position of the phase in its step
  switch (phase) {
    case Phase::kForward:
      place = 0;
      break;
    case Phase::kRecompute:
      place = 1;
      break;
    case Phase::kBackward:
      place = 2;
      break;
    case Phase::kStep:
      place = 3;
      break;
  }
  return {step, place, order};
}

}  // namespace shardproof::sim::judge
