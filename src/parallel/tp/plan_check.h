// Checks that the styles of a plan fit their slots and each other.
#pragma once

#include <vector>

#include "parallel/tp/plan.h"

namespace shardproof {

// Throws Error(kRefused), which names the slot, its style and the styles that fit, for
//   - a style of another kind of slot (RowParallel on a norm);
//   - a style that needs sequence parallelism when it is off, or forbids it when it is on;
//   - neighbors of which one returns a tensor with another cut than the next one needs;
//   - a tied embedding whose two uses cut it differently.
void check_styles_fit(const ModelConfig& config, bool sequence_parallel,
                      const std::vector<SlotStyle>& styles);

}  // namespace shardproof
