// Compares the pieces of a recorded run with the reference, as RankRecorder does for our own ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sim/judge/diff/result_row.h"
#include "sim/uses/recorded/recorded_run.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {

// One report per rank. `progress` may be empty (recorded_judgement.h). Every piece has a place.
// Partial pieces are addends, not yet summed. Tensors of the reference that no rank recorded are
// unobserved; only gradients, parameters and optimizer state are demanded.
std::vector<judge::RankReport> judge_pieces(const RecordedRun& run, const CaseSpec& spec,
                                            const Reference& reference,
                                            const std::function<void(int64_t, int64_t)>& progress);

// After settle_addends(), of a run in float64: sums that are right by the rule of float64 match,
// although they were computed from values that are unresolved.
void settle_exact_sums(const Reference& reference, std::vector<judge::RankReport>& reports);

}  // namespace shardproof::sim::recorded
