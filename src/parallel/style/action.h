// What a rank does in a pass over its microbatches, one after another.
#pragma once

#include <cstdint>
#include <vector>

namespace shardproof {

// One piece of work on one microbatch and one chunk. A chunk is a part of the model that the rank
// runs at once (Decoder::set_chunks); without a pipeline there is one, chunk 0.
struct Action {
  // kWeights computes the gradients of the linears' matrices that a split backward left out.
  enum class Kind { kForward, kBackward, kWeights };
  Kind kind;
  int64_t microbatch;
  int64_t chunk = 0;
  bool operator==(const Action&) const = default;
};

// F0 B0 F1 B1 ..: at most one microbatch's activations are kept.
std::vector<Action> one_at_a_time(int64_t microbatches);

// F0 F1 ..: a pass without gradients.
std::vector<Action> forwards_only(int64_t microbatches);

// Asserts that each microbatch has one forward in each of `chunks` chunks, then, with `backward`,
// one backward, and then one kWeights if there is any.
void check_actions(const std::vector<Action>& actions, int64_t microbatches, int64_t chunks = 1,
                   bool backward = true);

// Which gradients of an action's chunk are complete when the action ends: those of its microbatch,
// or also those of all other microbatches.
enum class Complete { kNothing, kMicrobatch, kStep };
// One for each action.
std::vector<Complete> completed_by(const std::vector<Action>& actions);

}  // namespace shardproof
