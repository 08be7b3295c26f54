#include "sim/judge/probe/optimizer_terms.h"

#include <cmath>
#include <limits>

namespace shardproof::sim::judge {

void widen(const float* __restrict from, size_t count, double* __restrict to) {
  for (size_t i = 0; i < count; ++i) to[i] = from[i];
}

void first_moment(double beta, double largest, const double* __restrict before,
                  const double* __restrict gradient, size_t count, OptimizerBlock& __restrict due) {
  for (size_t i = 0; i < count; ++i) {
    const double kept = beta * before[i], joins = (1 - beta) * gradient[i];
    due.value[i] = held_in(largest, kept + joins);
    due.magnitude[i] = std::fabs(kept) + std::fabs(joins);
  }
}

void second_moment(double beta, double largest, const double* __restrict before,
                   const double* __restrict gradient, size_t count,
                   OptimizerBlock& __restrict due) {
  for (size_t i = 0; i < count; ++i) {
    const double square =
        held_in(largest, beta * before[i] + (1 - beta) * gradient[i] * gradient[i]);
    due.value[i] = square;
    due.magnitude[i] = square;
  }
}

void adamw_parameter(double kept, double rate, double correction, double eps,
                     const double* __restrict before, const OptimizerBlock& __restrict square,
                     size_t count, OptimizerBlock& __restrict due) {
  const double terms_of_kept = 1 + std::fabs(1 - kept);  // 1 and lr decay, which may be the larger
  for (size_t i = 0; i < count; ++i) {
    const double step = rate / (std::sqrt(square.value[i] / correction) + eps);
    due.value[i] = kept * before[i] - step * due.value[i];
    due.magnitude[i] = terms_of_kept * std::fabs(before[i]) + step * due.magnitude[i];
  }
}

bool all_within(double share, double largest, const double* actual, const OptimizerBlock& due,
                size_t count) {
  // GCC alone makes no vectors of such a loop. A comparison with NaN is false.
  using Pair = double __attribute__((vector_size(16)));
  auto within = Pair{} == Pair{};
  const auto take = [&](const Pair& seen, const Pair& value, const Pair& magnitude) {
    const Pair allowance = share * magnitude + std::numeric_limits<float>::denorm_min();
    const Pair error = seen - value;
    within &= (error <= allowance) & (-error <= allowance) & (value <= largest) &
              (-value <= largest) & (allowance < std::numeric_limits<double>::infinity());
  };
  const auto pair_at = [](const double* from) { return Pair{from[0], from[1]}; };
  size_t i = 0;
  for (; i + 1 < count; i += 2) {
    take(pair_at(actual + i), pair_at(&due.value[i]), pair_at(&due.magnitude[i]));
  }
  if (i < count) {
    take(Pair{actual[i], 0}, Pair{due.value[i], 0}, Pair{due.magnitude[i], 0});
  }
  return within[0] != 0 && within[1] != 0;
}

}  // namespace shardproof::sim::judge
