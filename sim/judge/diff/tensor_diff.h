// Compares a rank's local tensor with the golden elements that it holds.
//
// A first pass at memory speed checks whether every error is within the common allowance. Only when
// one is not, a second pass inspects each element: per-element allowances, non-finite values, the
// position and size of the worst error.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/case/record/golden_record.h"
#include "sim/judge/diff/index_plan.h"
#include "sim/judge/diff/tolerance.h"
#include "tensor/tensor_view.h"

namespace shardproof::sim::judge {

struct DiffTask {
  const TensorView& local;     // of plan.local_shape
  const GoldenTensor& golden;  // floating point if and only if `local` is
  const IndexPlan& plan;
  double scale = 1;                             // actual = scale * golden
  double allowance = 0;                         // of every element, for |scale| = 1
  const FreeRunningAllowance* added = nullptr;  // per element, or null
  bool padding_is_zero = false;  // [B, S]: the golden's zeros in column 0 and at row ends are exact
  Members members = Members::kAll;  // whose factors count
};

struct DiffResult {
  int64_t bad_count = 0;
  double worst_ratio = 0;  // largest error / allowance; infinite for NaN
  double worst_error = 0;  // of that element, as is `allowance`
  double allowance = 0;
  // The worst element, when bad_count > 0; another one only has a ratio that is larger by less than
  // kEqualRatios (result_row.h), and comes later:
  double golden_value = 0, actual_value = 0;    // golden_value includes the scale
  int64_t worst_local = -1, worst_golden = -1;  // offsets
  double factor = 1, factor_residual = 0;       // over all elements, see ResultRow
};

// An element is right when error <= allowance, so NaN is wrong. Golden elements that are not finite
// or exceed both 1e30 and the golden's scale in magnitude, and all integers, must be equal (NaN
// equals NaN).
DiffResult diff(const DiffTask& task);

// Gives `row`, whose reason is set, the outcome of its comparison by the plan and the worst
// element.
struct ResultRow;
void take_result(const DiffResult& result, const IndexPlan& plan, ResultRow& row);

// Sums over the elements of a floating tensor: (actual - due) due, and due^2.
struct AlongGolden {
  double error = 0, square = 0;
};
AlongGolden along_golden(const DiffTask& task);
// Of each of so many equal parts of the whole tensor, over the elements that the rank holds.
struct PartErrors {
  double square = 0, golden = 0;  // sums of the squares of the errors, and of the golden's values
  int64_t count = 0;
};
std::vector<PartErrors> errors_of_parts(const DiffTask& task, int64_t parts);

// Copies both sides as float64 in local order: golden times scale, and 0 at padding.
void copy_both(const DiffTask& task, std::vector<double>& actual, std::vector<double>& golden);

// For each row of [B, S], the first column of its tail of zeros, which must be exactly zero.
std::vector<int64_t> zero_tails(const GoldenTensor& golden);

}  // namespace shardproof::sim::judge
