// Rounding errors in a low precision that show in a tensor as a whole, not in a single element.
#pragma once

#include <cstdint>
#include <string>

#include "base/precision.h"
#include "sim/judge/diff/tensor_diff.h"
#include "tensor/tensor_view.h"

namespace shardproof::sim::judge {

// Returns a sentence when float32 values were not computed in float32: all of them, `fewest`
// different ones or more, have no more significant bits than `precision` (bfloat16 or float16). Use
// it for values that are due in the wider type (model/precision.h). One value has so few bits by
// chance once in 2^13 times. Returns "" otherwise.
std::string rounded_through(const TensorView& values, Precision precision, size_t fewest = 8);

// A check of the tensor as a whole, below float64: <actual, golden> / <golden, golden> is a mean
// over all elements, in which roundings cancel. Its distance from 1 must be at most kFactorScatters
// times that of the golden's members. Only call it before the first optimizer step: AdamW turns the
// sign of a small gradient into an error of a parameter that all tokens share. Tensors of fewer
// than kFewestOfFactor elements, or of fewer than kFewestRowsOfFactor rows, are not checked: all
// elements of a row may share one rounding, that of the sum of a softmax, and few rows are few
// draws. Logprobs and tensors of one dim have no rows.
//
// Correct runs use up to 3.7 (77,000 tensors of 150 random cases): a factor that all elements of a
// few sequences share is one draw for each of them. For a piece that holds the share q of the
// golden's sum of squares, the distance of the members is larger by sqrt(1 / q).
inline constexpr double kFactorScatters = 10;
inline constexpr int64_t kFewestOfFactor = 64;
inline constexpr int64_t kFewestRowsOfFactor = 16;
struct FactorCheck {
  double used = 0;           // share of what is allowed; 0 where the check does not apply
  std::string problem = {};  // "" or a sentence
};
FactorCheck check_factor(const DiffTask& task, Precision precision);

// A check of the errors together, below float64: the sum of their squares in a rank's piece must be
// at most kSquareScatters^2 times that of the golden's members in the same samples (of a tensor
// without samples, in the whole tensor). It finds an error that many elements have, each within its
// allowance, as where a rank's addend is lost in samples whose values are small beside those of
// others. Parameters and optimizer state have checks of their own (own_optimizer.h), and sums of
// declared addends are not checked so.
inline constexpr double kSquareScatters = 4;
FactorCheck check_squares(const DiffTask& task, Precision precision);

}  // namespace shardproof::sim::judge
