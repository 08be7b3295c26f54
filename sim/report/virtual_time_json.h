// The virtual time of a case in results.json.
#pragma once

#include <nlohmann/json.hpp>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim {

// {"total_us", "ranks": [{"rank", "total_us", "compute_us", "waiting_us", "exposed_us",
// "communication_us"}], "critical_path": [{"rank", "what", "start_us", "duration_us"}],
// "critical_path_left_out", "critical_path_shares": [{"what", "duration_us"}]}. A long path has
// only its longest steps, in order, and the number left out. Shares are of the whole path, largest
// first. Null in wall time.
nlohmann::ordered_json virtual_time_json(const CaseResult& result);

}  // namespace shardproof::sim
