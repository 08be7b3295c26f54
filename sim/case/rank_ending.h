// How one rank's part of a case ended, and its notes about faults and calls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/case/verdict.h"

namespace shardproof::sim {

// One planted fault, as its rank saw it.
struct FaultNote {
  int64_t index = 0;  // in the case's list of faults
  bool fired = false;
  int64_t step = 0;     // training step at which it acted; 0: before the first, or while scoring
  std::string call;     // the call at which it acted
  std::string effect;   // "bit 52 of element 7 of the input: 0.25 became 0.5"
  std::string problem;  // why it could not act
  int64_t matches = 0;  // number of calls at which it could have acted
  int64_t calls = 0;    // number of all calls of the rank
};

// One call of one rank, as its backend made it (a backend without reduce_scatter makes an
// all_reduce). Ranks are global; places and the root are in group order.
struct CallDigest {
  std::string op;     // "all_reduce", .., "send", "recv"
  std::string group;  // "tp[2,3]"
  std::vector<int64_t> ranks;
  int64_t place = 0;     // of this rank
  int64_t sequence = 0;  // in this group on this rank; for messages in this channel
  int64_t root = -1;     // for send and recv: the other side
  int64_t tag = 0;
  int64_t step = 0;                     // training step, 0 before the first
  std::string call;                     // "all_gather tp[0,1] [4,8] float64 'label'"
  std::vector<uint64_t> sent = {};      // for all, or one for each place; []: nothing
  std::vector<uint64_t> received = {};  // from the root, or one from each place; []: nothing
};

// How one rank's part of a case ended, as the launcher saw it.
struct RankEnding {
  int64_t rank = 0;
  ResultKind kind = ResultKind::kFinished;
  std::string message;                   // one or more sentences
  std::string last_call;                 // label of the last collective that it entered; "" none
  std::string bytes;                     // the encoded RankReport when it finished
  std::vector<FaultNote> faults = {};    // faults planted on this rank, as far as it reported them
  std::string printed = {};              // the last lines of its process, when it failed
  std::vector<CallDigest> digests = {};  // of its calls, where calls are hashed
};

}  // namespace shardproof::sim
