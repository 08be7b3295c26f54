// Valid cases that this version cannot shard, which a rank refuses before it communicates.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim::world {

// Throws Error(kRefused) for a global batch that dp does not divide, without data.uneven; for pairs
// that batching separates; and for a mesh of a policy, used or only loaded onto, that does not
// divide the heads. Throws Error(kBadInput) for samples that are not in pairs.
void refuse_unsupported(const CaseSpec& spec, const ModelConfig& config, int64_t samples);

}  // namespace shardproof::sim::world
