// The faults that a scenario plants, checked against its mesh.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/case/scenario/settings.h"

namespace shardproof::sim {

// Throws Error(kBadInput), with the place in the file: a rank outside the world, an unknown axis, a
// stale buffer at a call that has none before it.
std::vector<FaultSpec> read_faults(const Settings& settings, int64_t world_size);

}  // namespace shardproof::sim
