// Worlds of real ranks with a small rank function instead of a model: it makes a few all_reduces
// over "world" and over pairs, as the case's options say.
//
//   options: {"calls": 3, "silent": false, "unchecked": false, "rank 1": what it does at the second
//   sum, such as "leave" or "gather" (act_out in small_ranks.cpp)}
#pragma once

#include <string>

#include "sim/world/launch/world_pool.h"

namespace shardproof::sim::world {

// Every rank checks every sum; a RankEnding's bytes are "<pid>".
WorkerFunctions small_workers();

CaseSpec small_case(const std::string& backend, int64_t world_size,
                    nlohmann::json options = nlohmann::json::object());

}  // namespace shardproof::sim::world
