// Choices of training routers and experts that scenarios name and the sharded code acts on.
#pragma once

#include <array>
#include <cstdint>

#include "base/enum_names.h"

namespace shardproof {

// The tokens over which a side loss of a router is one loss (model/moe/side_losses.h).
//   kMicrobatch   a microbatch of the ranks that share its samples
//   kSequence     each sequence, also in a packed row
//   kGlobal       as kMicrobatch, but the shares of routes are those of the same microbatch of all
//                 ranks and of the microbatches before it in the step
enum class LossGroups { kMicrobatch, kSequence, kGlobal };
constexpr std::array<const char*, 3> names_of(LossGroups) {
  return {"microbatch", "sequence", "global"};
}

// kPooled: one balancing loss over the tokens of all layers together, as Hugging Face computes it.
enum class BalancingForm { kPerLayer, kPooled };
constexpr std::array<const char*, 2> names_of(BalancingForm) { return {"per_layer", "pooled"}; }

struct SideLossOptions {
  double balance = 0;                           // coefficient of the balancing loss; 0: none
  LossGroups groups = LossGroups::kMicrobatch;  // of both losses
  BalancingForm form = BalancingForm::kPerLayer;
  double z = 0;  // coefficient of the z loss; 0: none
  bool any() const { return balance != 0 || z != 0; }
};

// Of a router's selection bias (model/moe/selection_bias.h).
struct BiasRule {
  double rate = 0;        // of each step; 0: there is no bias
  bool centered = false;  // the mean of the signs is subtracted, so that the bias keeps its mean
};

// Which routes of an expert stay when it has more than its capacity (model/moe/capacity.h).
enum class DropPolicy {
  kProbs,     // an expert keeps its C largest weights; of equal ones the first token's
  kPosition,  // an expert keeps its first C tokens
};
constexpr std::array<const char*, 2> names_of(DropPolicy) { return {"probs", "position"}; }

// The tokens that share a capacity: those of a microbatch on one rank, before they go to their
// experts, or each sequence.
enum class CapacityScope { kRank, kSequence };
constexpr std::array<const char*, 2> names_of(CapacityScope) { return {"rank", "sequence"}; }

// Where two scores or weights are nearer than this, roundings may decide which expert a token goes
// to and which route stays. No layout is right then, so that such a case is refused.
inline constexpr double kLeastMargin = 1e-8;

struct CapacityRule {
  double factor = 0;  // of the average number of routes; 0: no limit
  int64_t minimum = 0;
  DropPolicy policy = DropPolicy::kProbs;
  CapacityScope scope = CapacityScope::kSequence;
};

}  // namespace shardproof
