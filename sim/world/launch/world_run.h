// How one case on one world went.
#pragma once

#include <string>
#include <vector>

#include "sim/case/rank_ending.h"

namespace shardproof::sim::world {

struct WorldRun {
  std::vector<RankEnding> endings;  // by rank
  bool reusable = false;            // all finished, or all refused before the first collective
  bool warm = false;                // the world had run a case before
  double seconds = 0;
};

}  // namespace shardproof::sim::world
