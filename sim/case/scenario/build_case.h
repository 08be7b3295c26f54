// Builds the case that the settings of one row of a scenario describe.
#pragma once

#include "sim/case/case_spec.h"
#include "sim/case/scenario/scenario.h"
#include "sim/case/scenario/settings.h"

namespace shardproof::sim {

// Fills in sizes and checks settings against each other. The caller sets name, tags and skip.
// Throws Error(kBadInput) at the position of the wrong setting.
CaseSpec build_case(const Settings& settings, const WorldChoice& world);

}  // namespace shardproof::sim
