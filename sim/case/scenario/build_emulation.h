// From settings to how an emulated world behaves: strictness, nodes, links and clocks.
#pragma once

#include "sim/case/case_spec.h"
#include "sim/case/scenario/settings.h"

namespace shardproof::sim {

// Throws Error(kBadInput) when the nodes do not hold the ranks, or a straggler is none of them.
void set_emulation(const Settings& settings, int64_t world_size, WorldSpec& world);

}  // namespace shardproof::sim
