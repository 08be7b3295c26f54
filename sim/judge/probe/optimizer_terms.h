// The formulas of own_optimizer.h for a block of elements. Compiled separately with -O3
// (CMakeLists.txt). Pointers are to `count` values each and do not overlap.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

namespace shardproof::sim::judge {

// Elements; what is read and computed stays in the first cache.
inline constexpr size_t kOptimizerBlock = 512;

// What is due, and the sum of the magnitudes of its terms.
struct OptimizerBlock {
  std::array<double, kOptimizerBlock> value, magnitude;
};

void widen(const float* from, size_t count, double* to);
// `value`, or infinity where `largest` is exceeded.
inline double held_in(double largest, double value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return std::fabs(value) > largest ? std::copysign(kInfinity, value) : value;
}

// due = beta before + (1 - beta) gradient, held in `largest`.
void first_moment(double beta, double largest, const double* before, const double* gradient,
                  size_t count, OptimizerBlock& due);
// due = beta before + (1 - beta) gradient^2, held in `largest`.
void second_moment(double beta, double largest, const double* before, const double* gradient,
                   size_t count, OptimizerBlock& due);
// Of AdamW: due = kept before - rate due / (sqrt(square / correction) + eps), where `due` has the
// first moment and `square` the second.
void adamw_parameter(double kept, double rate, double correction, double eps, const double* before,
                     const OptimizerBlock& square, size_t count, OptimizerBlock& due);
// Whether each error is at most share magnitude + the smallest float32, and what is due is finite.
bool all_within(double share, double largest, const double* actual, const OptimizerBlock& due,
                size_t count);

}  // namespace shardproof::sim::judge
