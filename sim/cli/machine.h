// The worlds that this machine can run.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/case/world_spec.h"
#include "sim/cli/arguments.h"
#include "sim/run/limits.h"
#include "sim/world/external/external_place.h"
#include "sim/world/launch/world_pool.h"

namespace shardproof::sim::cli {

// A sentence that says why a world cannot run here and how to fix that; "" when it can.
std::string why_not(Backend backend, DeviceKind device);
// Throws Error(kBadInput) with that sentence.
void require_can_run(Backend backend, DeviceKind device);
// The backends that can run here on that device, in the order in which `run` uses them.
std::vector<Backend> runnable_backends(DeviceKind device);
// What the worlds of a command may take; nothing with --ignore-limits.
std::optional<run::MachineLimits> limits_for(const WorldArguments& arguments);

// The processes of a launcher, of which rank 0's judges.

// On rank 0, calls `run`, which returns the exit status, and says what it throws and which
// connections were refused. The other ranks serve, and leave with the same status: they do not
// return. Prints everything before they leave: a launcher may kill rank 0 once another rank has
// exited.
int run_on_external_ranks(const world::ExternalPlace& place, Backend backend, DeviceKind device,
                          const world::WorkerFunctions& functions,
                          const std::function<int(world::WorldPool&)>& run);

}  // namespace shardproof::sim::cli
