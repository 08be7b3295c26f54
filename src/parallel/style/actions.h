// The forwards and backwards of an optimizer step.
#pragma once

#include <cstdint>
#include <vector>

namespace shardproof {

struct Action {
  enum class Kind { kForward, kBackward };
  Kind kind;
  int64_t microbatch;
  bool operator==(const Action&) const = default;
};

// F0 B0 F1 B1 ..: at most one microbatch's activations are kept.
std::vector<Action> one_at_a_time(int64_t microbatches);
// Asserts that each microbatch has one forward and then one backward.
void check_actions(const std::vector<Action>& actions, int64_t microbatches);

}  // namespace shardproof
