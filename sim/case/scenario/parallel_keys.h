// The keys of a scenario's block `parallel`.
#pragma once

#include <vector>

#include "sim/case/scenario/schema.h"

namespace shardproof::sim {

std::vector<SchemaKey> parallel_keys();

}  // namespace shardproof::sim
