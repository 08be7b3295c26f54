// What a rank finds out about a failing tensor while it has the whole golden at hand.
#pragma once

#include <string>
#include <vector>

#include "sim/judge/diff/evidence.h"
#include "sim/judge/diff/tensor_diff.h"

namespace shardproof::sim {

// Looks only at golden tensors of the same shape. Another tensor counts only where it and the
// golden's own differ by more than rounding may make of either (kToldApart allowances): in a low
// precision two steps may lie nearer to each other than that, and then nothing is found.
std::vector<Evidence> look_closer(const DiffTask& task, const GoldenRecord& golden,
                                  const std::string& precision);
inline constexpr double kToldApart = 4;

// Why float32 values were not computed in float32: all of them, eight different ones or more, are
// exactly what `precision` (bfloat16 or float16) can hold. For quantities that are due in the wider
// type (model/precision.h); by chance it happens once in 2^104 times. "" when they are in order.
std::string rounded_through(const at::Tensor& values, const std::string& precision);

}  // namespace shardproof::sim
