// What each rank handed in at a call and what it got out of it, as hashes that must agree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/case/rank_ending.h"

namespace shardproof::sim {

struct DigestFinding {
  int64_t step = 0;
  std::string call;
  std::string message;         // with both ranks, the call and its label
  std::vector<int64_t> ranks;  // that it names, ascending
};

// Where they do not agree, one finding for each call, in the order in which a rank made them:
//
//   all_reduce              its members hold unequal results; of several the fewest are named
//   any other that copies   what a rank received is not what the other one sent
//   reduce_scatter          nothing is held twice: not compared
//
// `calls[r]`: those of rank r in its order. A member whose calls are missing is passed over.
std::vector<DigestFinding> digest_findings(const std::vector<std::vector<CallDigest>>& calls);

}  // namespace shardproof::sim
