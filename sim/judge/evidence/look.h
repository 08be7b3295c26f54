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

}  // namespace shardproof::sim
