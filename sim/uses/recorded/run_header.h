// run.json of a recorded run: what is true of all its ranks.
#pragma once

#include <cstdint>

#include "sim/uses/recorded/fields.h"
#include "sim/uses/recorded/recorded_run.h"

namespace shardproof::sim::recorded {

inline constexpr int64_t kMaxSteps = 100000;
inline constexpr int64_t kMostRepeats = 1024;  // of one run

// All but its format and version. Throws Error(kBadInput) as read_recorded_run() does.
void read_header(const Fields& fields, RecordedRun& run);

}  // namespace shardproof::sim::recorded
