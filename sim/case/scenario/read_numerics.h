// What a scenario does to its numbers on purpose: loss scaling, noise on weights, a huge advantage.
#pragma once

#include "sim/case/case_spec.h"
#include "sim/case/scenario/settings.h"

namespace shardproof::sim {

// After model and data are set. Throws Error(kBadInput) at the place in the file: a sample that the
// batch does not have, a huge advantage in a batch that is not generated, noise without training.
void read_numerics(const Settings& settings, CaseSpec& spec);

}  // namespace shardproof::sim
