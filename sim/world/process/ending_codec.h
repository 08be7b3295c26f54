// Rank endings as bytes, for the socket between a worker and control.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "sim/case/rank_ending.h"

namespace shardproof::sim::world {

std::string encode(const std::vector<RankEnding>& endings);
// Encodes them in parts of some MiB, so that neither side holds the reports of many ranks twice.
void send_endings(std::vector<RankEnding> endings,
                  const std::function<void(const std::string&)>& send);
std::vector<RankEnding> decode_endings(const std::string& bytes);

// One planted fault of a rank, as it acts.
std::string encode(int64_t rank, const FaultNote& note);
std::pair<int64_t, FaultNote> decode_fault(const std::string& bytes);

}  // namespace shardproof::sim::world
