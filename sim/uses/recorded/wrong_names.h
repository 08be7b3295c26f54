// What the wrong gradients of a step have in common.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/judge/diff/result_row.h"

namespace shardproof::sim::recorded {

// "3 of 30 gradients of step 1 are wrong: all with 'norm' in their name, and no others"; with no
// common part their names, at most four; "" when at most one is wrong.
std::string other_wrong_gradients(const std::vector<judge::RankReport>& reports, int64_t step);

}  // namespace shardproof::sim::recorded
