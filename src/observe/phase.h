// The phases of a step, in which tensors are observed.
#pragma once

#include <array>
#include <cstddef>

namespace shardproof {

enum class Phase { kForward, kBackward, kRecompute, kStep };

inline const char* phase_name(Phase phase) {
  constexpr std::array kNames = {"forward", "backward", "recompute", "step"};
  return kNames.at(static_cast<size_t>(phase));
}

}  // namespace shardproof
