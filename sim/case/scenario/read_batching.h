// How a dp rank's samples become microbatches, as a scenario file says it.
#pragma once

#include "sim/case/case_spec.h"
#include "sim/case/scenario/settings.h"

namespace shardproof::sim {

// Sets micro_batch_size and batching. Throws Error(kBadInput) at the place in the file: more than
// one way of batching.
void read_batching(const Settings& settings, CaseSpec& spec);

}  // namespace shardproof::sim
