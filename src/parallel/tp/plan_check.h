// Whether the styles of a plan fit their slots and each other.
#pragma once

#include <vector>

#include "parallel/tp/plan.h"

namespace shardproof {

// Throws Error(kRefused), naming the slot, its style and the styles that would fit:
//   - a style for another kind of slot (RowParallel on a norm);
//   - a style that needs sequence parallelism, or that it forbids;
//   - neighbours that hand on a tensor cut in another way than the next one takes it;
//   - a tied embedding whose two uses want it cut differently.
void check_styles_fit(const ModelConfig& config, bool sequence_parallel,
                      const std::vector<SlotStyle>& styles);

}  // namespace shardproof
