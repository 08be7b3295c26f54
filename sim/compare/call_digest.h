// What each rank handed in at a call and what it got out of it, as hashes that must agree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardproof::sim {

// One call of one rank, as its backend made it (a reduce_scatter that a backend does not have is an
// all_reduce here). Ranks are global, places and the root in group order.
struct CallDigest {
  std::string op;     // "all_reduce", .., "send", "recv"
  std::string group;  // "tp[2,3]"
  std::vector<int64_t> ranks;
  int64_t place = 0;     // this rank's
  int64_t sequence = 0;  // in this group on this rank; of messages in this channel
  int64_t root = -1;     // send, recv: the other side
  int64_t tag = 0;
  int64_t step = 0;                     // training step, 0 before the first
  std::string call;                     // "all_gather tp[0,1] [4,8] float64 'label'"
  std::vector<uint64_t> sent = {};      // for everybody, or one for each place; [] nothing
  std::vector<uint64_t> received = {};  // from the root, or one from each place; [] nothing
};

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
