// The cause of a wrong norm of the gradients, and of gradients that each rank clipped by its own.
#pragma once

#include <string>

#include "sim/judge/verdict/verdict.h"
#include "sim/uses/recorded/recorded_run.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {

// The gradients of a step tell its norm: of a rank's own part, of all ranks without a difference
// between cut tensors and copies, or of the whole. Norms of shares that no rank recorded are known
// by their squares, which add up to that of the whole. "" when the finding fits none of these.
std::string clue_of_norm(const RecordedRun& run, const Reference& reference,
                         const judge::Divergence& found);

}  // namespace shardproof::sim::recorded
