// The process of a rank moves into the network namespace of its node.
#pragma once

#include "sim/world/process/worker_functions.h"

namespace shardproof::sim::world {

// As WorkerFunctions::enter_node. Throws InternalError: the kernel does not let it.
ChangeLink enter_node(const NodePlace& place);

}  // namespace shardproof::sim::world
