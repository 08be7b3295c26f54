// The entries of a rank's timeline.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/enum_names.h"

namespace shardproof::sim {

// kWait: from a wait() to its result, in wall time. In virtual time a call's own time is waiting
// for other ranks and then exposed; kCommunication is its transfer, which computing may hide.
// kAction is a forward, a backward or weight gradients of a stage, with all that it waits for.
enum class StretchKind { kCommunication, kWait, kCompute, kWaiting, kExposed, kAction };
constexpr std::array<const char*, 6> names_of(StretchKind) {
  return {"communication", "wait", "compute", "waiting", "exposed", "action"};
}

// Times are microseconds after an origin that all ranks of a case share.
struct Stretch {
  std::string name;  // of a call, "all_reduce(sum) tp[0,1] [4] float64 'label'", or an action
  StretchKind kind = StretchKind::kCommunication;
  bool in_virtual_time = false;
  double start_us = 0, duration_us = 0;
  int64_t step = 0;  // of an action
  // Of a transfer in virtual time (sim/world/clock/rank_clock.h).
  std::string group = {};
  double ready_us = 0, blocked_from_us = 0;
  int64_t last_rank = -1;

  bool operator==(const Stretch&) const = default;
};

}  // namespace shardproof::sim
