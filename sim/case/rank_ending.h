// How one rank's part of a case ended, and its notes about faults and calls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/call.h"
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

// The data of one call of one rank.
struct CallDigest {
  Call call;
  int64_t step = 0;                     // training step, 0 before the first
  int64_t calls_before = 0;             // of the rank, with those that are not hashed
  std::vector<uint64_t> sent = {};      // for all, or one for each place; []: nothing
  std::vector<uint64_t> received = {};  // from the root, or one from each place; []: nothing
};

// How one rank's part of a case ended, as the launcher saw it.
struct RankEnding {
  int64_t rank = 0;
  ResultKind kind = ResultKind::kFinished;
  std::string message = {};              // one or more sentences
  bool shortage = false;                 // kBadInput: the machine lacked something for this rank
  std::string last_call = {};            // label of the last collective that it entered; "" none
  std::string bytes = {};                // the encoded RankReport when it finished
  std::vector<FaultNote> faults = {};    // faults planted on this rank, as far as it reported them
  std::string printed = {};              // the last lines of its process, when it failed
  std::vector<CallDigest> digests = {};  // of its calls, where calls are hashed
};

// It would not run the case, by a rule or for its input: nothing failed.
inline bool is_refusal(const RankEnding& ending) {
  return ending.kind == ResultKind::kRefused || ending.kind == ResultKind::kBadInput;
}

}  // namespace shardproof::sim
