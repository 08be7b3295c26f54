// Which calls of different ranks are one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "base/call.h"

namespace shardproof {

// Group, from, to and tag; -1, -1 and 0 but for messages. Calls are numbered in each channel.
using CallChannel = std::tuple<std::string, int64_t, int64_t, int64_t>;
CallChannel channel_of(const Call& call);

// With the number of recreations of its group, and the call's number.
using CallKey = std::tuple<CallChannel, int64_t, int64_t>;

// The keys of one rank's calls, taken in their order: a group that is made again counts from 0
// again.
class CallKeys {
 public:
  CallKey next(const Call& call);

 private:
  struct Position {
    int64_t last = -1;  // number of the last call
    int64_t begun_anew = 0;
  };
  std::map<CallChannel, Position> positions_;
};

}  // namespace shardproof
