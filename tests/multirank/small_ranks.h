// Worlds of real ranks with a small rank function instead of a model: it makes a few all_reduces
// over "world" and over pairs, as the case's options say.
//
//   options: {"calls": 3, "silent": false, "rank 1": "leave" | "gather" | "stray" | "pipe"}
#pragma once

#include <string>

#include "sim/world/launch/world_pool.h"

namespace shardproof::sim {

// Every rank checks every sum; a RankEnding's bytes are "<pid>".
WorkerFunctions small_workers();

CaseSpec small_case(const std::string& backend, int64_t world_size,
                    nlohmann::json options = nlohmann::json::object());

}  // namespace shardproof::sim
