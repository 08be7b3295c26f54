// Both sides of a failing tensor, in the rank's order.
#pragma once

#include <cmath>
#include <vector>

#include "sim/judge/diff/tensor_diff.h"

namespace shardproof::sim::judge {

// Allowances that another computation of golden numbers may leave.
inline constexpr double kLeftBeside = 8;

struct Values {
  std::vector<double> actual, golden;
  double allowance = 0;
};

inline Values values_of(const DiffTask& task) {
  Values out;
  copy_both(task, out.actual, out.golden);
  out.allowance = std::fabs(task.scale) * task.allowance;
  return out;
}

inline DiffTask against(const DiffTask& task, const GoldenTensor& other) {
  return {task.local, other, task.plan, task.scale, task.allowance};
}

// Those of another golden tensor of the same shape.
inline std::vector<double> golden_values(const DiffTask& task, const GoldenTensor& other) {
  return values_of(against(task, other)).golden;
}

}  // namespace shardproof::sim::judge
