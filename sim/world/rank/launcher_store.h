// c10d's store over TCP that torchrun holds. Whoever reaches its port can read and change it: what
// is read here is no more than a hint.
#pragma once

#include "sim/world/process/worker_functions.h"

namespace shardproof::sim::world {

// As WorkerFunctions::exchange.
std::string exchange_text(const LauncherStore& place, const std::string& key,
                          const std::string& value);

}  // namespace shardproof::sim::world
