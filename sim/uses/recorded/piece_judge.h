// Compares the pieces of a recorded run with the reference, by the rule of our own ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sim/case/record/golden_record.h"
#include "sim/judge/diff/result_row.h"
#include "sim/uses/recorded/recorded_run.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {

// Of sums that are computed from unresolved values, by the golden's order: the allowance without
// these, and why it would not resolve the tensor.
using WidenedSums = std::map<int64_t, std::pair<double, std::string>>;

// One report per rank. `progress` may be empty (recorded_judgement.h). Every piece has a place.
// Partial pieces are addends, not yet summed. Tensors of the reference that no rank recorded are
// unobserved; only gradients, parameters and optimizer state are demanded.
std::vector<judge::RankReport> judge_pieces(const RecordedRun& run, const CaseSpec& spec,
                                            const Reference& reference,
                                            const std::function<void(int64_t, int64_t)>& progress,
                                            WidenedSums& widened);

// After settle_addends(): sums that are right by the allowance without their source match, although
// they were computed from values that are unresolved.
void settle_widened_sums(const WidenedSums& widened, std::vector<judge::RankReport>& reports);

// Adds a wrong row for each parameter that a rank has at the start and not after a step, and for
// each buffer that it lacks and another rank with the same parameters has.
void add_absent_pieces(const RecordedRun& run, const GoldenRecord& golden,
                       std::vector<judge::RankReport>& reports);

}  // namespace shardproof::sim::recorded
