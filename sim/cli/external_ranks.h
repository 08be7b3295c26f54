// The processes of a launcher, of which rank 0's judges.
#pragma once

#include <functional>

#include "sim/world/external/external_place.h"
#include "sim/world/launch/world_pool.h"

namespace shardproof::sim::cli {

// On rank 0, calls `run`, which returns the exit status, and says what it throws and which
// connections were refused. The other ranks serve, and leave with the same status: they do not
// return. Prints everything before they leave: a launcher may kill rank 0 once another rank has
// exited.
int run_on_external_ranks(const world::ExternalPlace& place, Backend backend, DeviceKind device,
                          const world::WorkerFunctions& functions,
                          const std::function<int(world::WorldPool&)>& run);

}  // namespace shardproof::sim::cli
