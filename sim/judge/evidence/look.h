// The facts that a rank finds about a failing tensor while it has the whole golden.
#pragma once

#include <vector>

#include "sim/judge/diff/evidence.h"
#include "sim/judge/diff/tensor_diff.h"

namespace shardproof::sim::judge {

// Compares only with golden tensors of the same shape. Another tensor counts only when it differs
// from the golden by more than kDistinctAllowances allowances. In a low precision two steps may be
// nearer to each other than that; then nothing is found.
std::vector<Evidence> look_closer(const DiffTask& task, const GoldenRecord& golden,
                                  Precision precision);
inline constexpr double kDistinctAllowances = 4;

}  // namespace shardproof::sim::judge
