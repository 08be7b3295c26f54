// From the settings of one row of a scenario to the case that they describe.
#pragma once

#include "sim/case/case_spec.h"
#include "sim/case/scenario/scenario.h"
#include "sim/case/scenario/settings.h"

namespace shardproof::sim {

// Fills in sizes and checks what settings say together. Name, tags and skip are the caller's.
// Throws Error(kBadInput) at the place of the setting that is wrong.
CaseSpec build_case(const Settings& settings, const WorldChoice& world);

}  // namespace shardproof::sim
