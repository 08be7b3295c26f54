#include "sim/judge/probe/optimizer_terms.h"

#include <cmath>
#include <limits>

// Compiled twice, for processors with AVX2 and for any other; without FMA, so that both give the
// same bits. Not under ThreadSanitizer, whose runtime is not there yet when the loader chooses one.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define SHARDPROOF_TWICE [[gnu::target_clones("avx2", "default")]]
#else
#define SHARDPROOF_TWICE
#endif

namespace shardproof::sim::judge {

SHARDPROOF_TWICE void widen(const float* __restrict from, size_t count, double* __restrict to) {
  for (size_t i = 0; i < count; ++i) to[i] = from[i];
}

SHARDPROOF_TWICE
void first_moment(double beta, double largest, const double* __restrict before,
                  const double* __restrict gradient, size_t count, OptimizerBlock& __restrict due) {
  for (size_t i = 0; i < count; ++i) {
    const double kept = beta * before[i], joins = (1 - beta) * gradient[i];
    due.value[i] = held_in(largest, kept + joins);
    due.magnitude[i] = std::fabs(kept) + std::fabs(joins);
  }
}

SHARDPROOF_TWICE
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

SHARDPROOF_TWICE
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

SHARDPROOF_TWICE
bool all_within(double share, double largest, const double* actual, const OptimizerBlock& due,
                size_t count) {
  // GCC alone makes no vectors of such a loop. A comparison with NaN is false.
  using Four = double __attribute__((vector_size(32), aligned(8), may_alias));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  auto within = Four{} == Four{};
  size_t i = 0;
  for (; i + 3 < count; i += 4) {
    const auto seen = *reinterpret_cast<const Four*>(actual + i);
    const auto value = *reinterpret_cast<const Four*>(&due.value[i]);
    const auto magnitude = *reinterpret_cast<const Four*>(&due.magnitude[i]);
    const Four allowance = share * magnitude + std::numeric_limits<float>::denorm_min();
    const Four error = seen - value;
    within &= (error <= allowance) & (-error <= allowance) & (value <= largest) &
              (-value <= largest) & (allowance < kInfinity);
  }
  bool good = within[0] != 0 && within[1] != 0 && within[2] != 0 && within[3] != 0;
  for (; i < count; ++i) {
    const double allowance = share * due.magnitude[i] + std::numeric_limits<float>::denorm_min();
    good = good && std::fabs(actual[i] - due.value[i]) <= allowance &&
           std::fabs(due.value[i]) <= largest && allowance < kInfinity;
  }
  return good;
}

}  // namespace shardproof::sim::judge
