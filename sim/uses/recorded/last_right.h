// What was right before a finding.
#pragma once

#include <string>
#include <vector>

#include "sim/judge/verdict/verdict.h"
#include "sim/uses/recorded/recorded_run.h"

namespace shardproof::sim::recorded {

// The last tensor that the finding's rank computed before it, of those that are right there: by
// step and phase, and within these by RecordedPiece::order. A tensor whose order is not known is
// named only where its step or phase tells that it came before. "loss of step 1" for another step
// than the finding's; "" for none, and for start parameters.
std::string last_right(const RecordedRun& run, const std::vector<judge::RankReport>& reports,
                       const judge::Divergence& found);

}  // namespace shardproof::sim::recorded
