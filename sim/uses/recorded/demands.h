// What a rank must have recorded by what it, or a rank with the same parameters, has recorded.
#pragma once

#include <vector>

#include "sim/case/record/golden_record.h"
#include "sim/judge/diff/result_row.h"
#include "sim/uses/recorded/recorded_run.h"

namespace shardproof::sim::recorded {

// Adds a wrong row for each parameter that a rank has at the start and not after a step, and for
// each buffer that it lacks and another rank with the same parameters has.
void add_absent_pieces(const RecordedRun& run, const GoldenRecord& golden,
                       std::vector<judge::RankReport>& reports);

}  // namespace shardproof::sim::recorded
