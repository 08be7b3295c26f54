// Where a float16 run overflows only because tp shares the sum of a linear: a rank's part of it may
// be infinite in float16 where the whole is not, since its terms cancel across ranks.
//
//   o_proj, down_proj    y = sum over the inputs that a rank has
//   other linears, head  dx = sum over the outputs that a rank has
#pragma once

#include "model/decoder.h"

namespace shardproof::golden {

inline constexpr double kLargestHalf = 65504;  // finite in float16

// Wraps the linears and the head of a float16 model. Values and gradients stay as they are, but are
// infinite where one of `parts` equal parts of their sum overflows.
void overflow_in_parts(Decoder& model, int64_t parts);

}  // namespace shardproof::golden
