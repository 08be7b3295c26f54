// The tensors of a recorded run, put together from its ranks' pieces: what another run is compared
// with.
#pragma once

#include <set>
#include <string>

#include "sim/case/record/golden_record.h"
#include "sim/recorded/recorded_run.h"

namespace shardproof::sim {

struct Reference {
  GoldenRecord record;           // ordered as the run computed them
  std::set<std::string> narrow;  // record keys of tensors that were recorded below float64
};

// Tensors are ordered by step and phase, then by RecordedPiece::order of the lowest rank. Throws
// Error(kBadInput) when ranks hold unequal copies of an element, and when no rank holds an element
// of a gradient, parameter or optimizer state.
Reference make_reference(const RecordedRun& run);

}  // namespace shardproof::sim
