// Integer arithmetic that detects overflow, and division that rounds up.
#pragma once

#include <cstdint>
#include <optional>

namespace shardproof {

constexpr std::optional<int64_t> checked_multiply(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

constexpr std::optional<int64_t> checked_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

// For value >= 0 and divisor > 0.
constexpr int64_t ceil_divide(int64_t value, int64_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}
static_assert(ceil_divide(7, 3) == 3 && ceil_divide(6, 3) == 2 && ceil_divide(0, 3) == 0);

}  // namespace shardproof
