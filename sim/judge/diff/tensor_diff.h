// Compares a rank's local tensor with the golden's elements that it holds.
//
// A first pass at memory speed says whether every error is within the common allowance. Only when
// one is not, a second pass looks at each element: allowances of its own, non-finite values, where
// and how.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "sim/case/record/golden_record.h"
#include "sim/judge/diff/index_plan.h"
#include "sim/judge/diff/tolerance.h"

namespace shardproof::sim {

struct DiffTask {
  const at::Tensor& local;     // contiguous, on the CPU, of plan.local_shape
  const GoldenTensor& golden;  // floating if and only if local is
  const IndexPlan& plan;
  double scale = 1;                             // actual = scale * golden
  double allowance = 0;                         // of every element, for |scale| = 1
  const FreeRunningAllowance* added = nullptr;  // per element, or null
  bool padding_is_zero = false;  // [B, S]: golden zeros in column 0 and at a row's end are exact
};

struct DiffResult {
  int64_t count = 0, bad_count = 0;
  double worst_ratio = 0;  // largest error / allowance; infinite for NaN
  double worst_error = 0;  // there, as below
  double allowance = 0;
  // Of the worst element, when bad_count > 0:
  double golden_value = 0, actual_value = 0;    // golden: times scale
  int64_t worst_local = -1, worst_golden = -1;  // offsets
  double factor = 1, factor_residual = 0;       // see ResultRow; over all elements
};

// Error <= allowance decides, so that NaN fails. Golden elements that are not finite or larger than
// 1e30, and all integers, must be equal (NaN equals NaN).
DiffResult diff(const DiffTask& task);

// Both sides as float64 in local order (golden times scale, 0 at padding), for whoever explains.
void copy_both(const DiffTask& task, std::vector<double>& actual, std::vector<double>& golden);

// Golden elements of [B, S] that must be exactly zero: per row, the first column of its zero tail.
std::vector<int64_t> zero_tails(const GoldenTensor& golden);

}  // namespace shardproof::sim
