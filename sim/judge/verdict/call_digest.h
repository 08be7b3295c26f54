// Hashes of each rank's inputs and outputs of a call, which must agree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/call_keys.h"
#include "sim/case/rank_ending.h"

namespace shardproof::sim::judge {

struct DigestFinding {
  int64_t step = 0;
  std::string message;         // names both ranks, the call and its label
  std::vector<int64_t> ranks;  // that the message names, ascending
  Call made = {};              // by one of its members
  CallKey key = {};
};

// Returns one finding for each call whose hashes disagree, in the order in which a rank made the
// calls:
//
//   all_reduce              members hold unequal results; those that the fewest hold are named
//   other calls that copy   a rank received something other than its peer sent
//   reduce_scatter          no two members hold the same values: not compared
//
// `calls[r]` are the calls of rank r in its order. A member whose calls are missing is skipped.
std::vector<DigestFinding> digest_findings(const std::vector<std::vector<CallDigest>>& calls);

}  // namespace shardproof::sim::judge
