// Which pieces of a recorded run must be equal to the bit.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "sim/uses/recorded/recorded_run.h"

namespace shardproof::sim::recorded {

// Pieces that must be equal: of one tensor, part, microbatch and, for addends, of one addend.
using CopyKey = std::tuple<std::string, int64_t, Place, std::vector<int64_t>, std::vector<int64_t>>;

CopyKey copy_key(const RecordedRun& run, const RecordedPiece& piece);
// The ranks that hold each copy, ascending.
std::map<CopyKey, std::vector<int64_t>> copies_of(const RecordedRun& run);

}  // namespace shardproof::sim::recorded
