// Makes the worlds that workers hold.
#pragma once

#include "sim/world/process/worker_functions.h"
#include "sim/world/rank/run_rank.h"

namespace shardproof::sim::run {

// With `setup.rank` -1 an emulated world with all ranks, else one rank. Each rank runs `main`.
world::WorldSession make_world(const world::WorldSetup& setup,
                               const world::RankMain& main = world::rank_main);

}  // namespace shardproof::sim::run
