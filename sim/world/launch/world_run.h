// How one case on one world went.
#pragma once

#include <vector>

#include "sim/case/rank_ending.h"

namespace shardproof::sim::world {

struct WorldRun {
  std::vector<RankEnding> endings;  // by rank
  bool reusable = false;            // all finished, or all refused before the first collective
};

}  // namespace shardproof::sim::world
