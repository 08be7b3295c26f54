// The keys of a scenario's optimizer and of its learning rate's schedulers: what PyTorch's own
// take.
#pragma once

#include <vector>

#include "sim/case/scenario/schema.h"

namespace shardproof::sim {

// The most steps that a scheduler may count; exact in a double.
constexpr double kManySteps = 9e15;

std::vector<SchemaKey> optimizer_keys();

}  // namespace shardproof::sim
