// The worlds that workers hold, put together from what a rank does and what the launcher wants to
// hear.
#pragma once

#include "sim/world/process/worker_functions.h"
#include "sim/world/rank/run_rank.h"

namespace shardproof::sim {

// `setup.rank` -1: an emulated world with all ranks in this process; else one process rank. `main`
// is what each rank runs.
WorldSession make_world(WorldSetup setup, const RankMain& main = rank_main);

}  // namespace shardproof::sim
