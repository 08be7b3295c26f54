// Draws of random numbers that are not the ones that were due, in words.
#pragma once

#include <string>
#include <vector>

#include "sim/judge/diff/result_row.h"
#include "sim/judge/explain/diagnose.h"

namespace shardproof::sim {

// "draw.<place>" (observe/draw_log.h).
bool is_draws(const std::string& name);

// The first draw of the first rank that differs: another stream, another seed of it, another place
// in it, or a generator that moved untold. Empty where the pieces say nothing.
Explanation explain_draws(const std::vector<const Piece*>& pieces);

}  // namespace shardproof::sim
