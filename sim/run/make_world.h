// Makes the worlds that workers hold.
#pragma once

#include "sim/world/process/worker_functions.h"
#include "sim/world/rank/run_rank.h"

namespace shardproof::sim {

// With `setup.rank` -1 an emulated world with all ranks, else one rank. Each rank runs `main`.
WorldSession make_world(WorldSetup setup, const RankMain& main = rank_main);

}  // namespace shardproof::sim
