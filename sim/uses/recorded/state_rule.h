// How an optimizer makes a state of the one before it, read from what the golden recorded.
#pragma once

#include <optional>

#include "sim/case/record/golden_record.h"

namespace shardproof::sim::recorded {

// After a step, a state is `kept` times itself before plus `added` times the gradient, or the
// gradient's square: a moment, a sum, a buffer of momentum.
struct StateRule {
  double kept = 0, added = 0;
  bool squares = false;

  double of(double gradient) const { return squares ? gradient * gradient : gradient; }
};

// The rule that gives the golden's state of this step, to the rounding of float64; none where no
// such rule does, or where the golden cannot tell, as at step 1.
std::optional<StateRule> rule_of_state(const GoldenRecord& golden, const GoldenTensor& state);

}  // namespace shardproof::sim::recorded
