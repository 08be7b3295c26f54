// Vectors of float32, read from and written to float32 or the bits of bfloat16. They use the
// instructions for which the including file is compiled, for loops over rows in main memory. A file
// with other instructions may define SHARDPROOF_FLOAT_LANES, the float32 of a vector, before.
#pragma once

#include <cstdint>
#include <cstring>

namespace shardproof {
namespace {  // each file that includes this has its own copy, for its own instructions

#ifdef SHARDPROOF_FLOAT_LANES
constexpr int64_t kLanes = SHARDPROOF_FLOAT_LANES;
#else
constexpr int64_t kLanes = 8;
#endif
using Floats = float __attribute__((vector_size(4 * kLanes)));
using Words = uint32_t __attribute__((vector_size(4 * kLanes)));
using HalfWords = uint16_t __attribute__((vector_size(2 * kLanes)));

inline Floats load_lanes(const float* from) {
  Floats out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

inline Floats load_lanes(const uint16_t* from) {
  HalfWords bits;
  std::memcpy(&bits, from, sizeof bits);
  return (Floats)(__builtin_convertvector(bits, Words) << 16);
}

inline void store_lanes(Floats lanes, float* to) { std::memcpy(to, &lanes, sizeof lanes); }

// Rounds to nearest, ties to even, as c10::BFloat16 does.
inline void store_lanes(Floats lanes, uint16_t* to) {
  const Words bits = (Words)lanes;
  const Words nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words not_a_number = Words{} + 0x7fc0u;
  const HalfWords out = __builtin_convertvector(lanes == lanes ? nearest : not_a_number, HalfWords);
  std::memcpy(to, &out, sizeof out);
}

inline float float_of(float value) { return value; }
inline float float_of(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float out;
  std::memcpy(&out, &wide, sizeof out);
  return out;
}

// Loads the last `count` < kLanes columns; the other lanes get `filling`.
template <class Element>
inline Floats load_rest(const Element* from, int64_t count, float filling) {
  float lanes[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) {
    lanes[i] = i < count ? float_of(from[i]) : filling;
  }
  return load_lanes(lanes);
}

inline float sum_of_lanes(Floats lanes) {
  float sum = 0;
  for (int64_t i = 0; i < kLanes; ++i) sum += lanes[i];
  return sum;
}

}  // namespace
}  // namespace shardproof
