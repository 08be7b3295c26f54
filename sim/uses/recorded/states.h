// The cause of a wrong state of an optimizer.
#pragma once

#include <string>

#include "sim/judge/verdict/verdict.h"
#include "sim/uses/recorded/recorded_run.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {

// For a state: it is what a first step makes of the gradient or of its square, because the
// optimizer began from empty states there; or it lies at another place of a flat buffer. For a
// count of steps: both counts, and what follows from them. "" for other tensors and causes.
std::string clue_of_state(const RecordedRun& run, const Reference& reference,
                          const judge::Divergence& found);

}  // namespace shardproof::sim::recorded
