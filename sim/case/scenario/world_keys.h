// The keys of a scenario's block `world`.
#pragma once

#include <vector>

#include "sim/case/scenario/schema.h"

namespace shardproof::sim {

std::vector<SchemaKey> world_keys();

}  // namespace shardproof::sim
