// The worlds that workers hold, put together from what a rank does and what the launcher wants to
// hear.
#pragma once

#include "sim/launch/worker_functions.h"

namespace shardproof::sim {

// `setup.rank` -1: an emulated world with all ranks in this process; else one process rank.
WorldSession make_world(WorldSetup setup);

}  // namespace shardproof::sim
