// The phases of a step, in which tensors are observed.
#pragma once

namespace shardproof {

enum class Phase { kForward, kBackward, kRecompute, kStep };
const char* phase_name(Phase phase);

}  // namespace shardproof
