// The kinds of entries in a rank's timeline.
#pragma once

#include <array>

#include "base/enum_names.h"

namespace shardproof::sim {

// kWait: from a wait() to its result, in wall time. In virtual time a call's own time is waiting
// for other ranks and then exposed; kCommunication is its transfer, which computing may hide.
// kAction is a forward, a backward or weight gradients of a stage, with all that it waits for.
enum class StretchKind { kCommunication, kWait, kCompute, kWaiting, kExposed, kAction };
constexpr std::array<const char*, 6> names_of(StretchKind) {
  return {"communication", "wait", "compute", "waiting", "exposed", "action"};
}

}  // namespace shardproof::sim
