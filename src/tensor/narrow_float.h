// The bits of the two floating-point formats of 16 bits, and their values.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace shardproof {

struct BFloat16 {
  uint16_t bits;
  explicit operator double() const {
    return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits) << 16));
  }
};

struct Float16 {
  uint16_t bits;
  explicit operator double() const {
    // The exponent of a double has another bias and the same order, subnormal numbers included.
    constexpr double kBias = 0x1p1008;
    double size = std::bit_cast<double>(static_cast<uint64_t>(bits & 0x7fffu) << 42) * kBias;
    if (size >= 0x1p16) {  // infinite or no number
      size = std::bit_cast<double>(std::bit_cast<uint64_t>(size) | uint64_t{0x7ff} << 52);
    }
    return (bits & 0x8000u) != 0 ? -size : size;
  }
};

// Whether a number of the format equals the value; false for NaN.
inline bool is_float32(double value) {
  return static_cast<double>(static_cast<float>(value)) == value;
}
inline bool is_bfloat16(double value) {
  return is_float32(value) && (std::bit_cast<uint32_t>(static_cast<float>(value)) & 0xffffu) == 0;
}
inline bool is_float16(double value) {
  if (std::isinf(value)) return true;
  if (!(std::fabs(value) <= 65504)) return false;
  int exponent = 0;
  std::frexp(value, &exponent);
  const double units = std::ldexp(value, exponent - 11 < -24 ? 24 : 11 - exponent);
  return units == std::trunc(units);
}

}  // namespace shardproof
