// Rank endings as bytes, for the socket between a worker and control.
#pragma once

#include <string>
#include <vector>

#include "sim/compare/verdict.h"

namespace shardproof::sim {

std::string encode(const std::vector<RankEnding>& endings);
std::vector<RankEnding> decode_endings(const std::string& bytes);

}  // namespace shardproof::sim
