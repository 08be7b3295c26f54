#include "observe/phase.h"

namespace shardproof {

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kRecompute:
      return "recompute";
    case Phase::kStep:
      return "step";
  }
  return "?";
}

}  // namespace shardproof
