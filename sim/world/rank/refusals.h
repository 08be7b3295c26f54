// What a rank refuses before it communicates: valid cases that this version cannot shard.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim {

// Throws Error(kRefused): a global batch that dp does not divide, without data.uneven; pairs that
// batching parts; of a policy a mesh, be it one that is only loaded onto, that the heads do not
// divide by. Error(kBadInput): samples that do not come in pairs.
void refuse_unsupported(const CaseSpec& spec, const ModelConfig& config, int64_t samples);

}  // namespace shardproof::sim
