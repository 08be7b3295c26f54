// The cause of a wrong norm of the gradients, and of gradients that each rank clipped by its own.
#pragma once

#include <string>

#include "sim/judge/verdict/verdict.h"
#include "sim/uses/recorded/recorded_run.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {

// The gradients of a step tell its norm: of a rank's own part, of all ranks without a difference
// between cut tensors and copies, or of the whole. "" when the finding fits none of the first two.
std::string clue_of_norm(const RecordedRun& run, const Reference& reference,
                         const judge::Divergence& found);

}  // namespace shardproof::sim::recorded
