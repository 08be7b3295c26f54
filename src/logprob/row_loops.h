// The loops of row_kernels.h in vectors, for the instructions of the including file.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "logprob/row_kernels.h"
#include "tensor/float_lanes.h"

namespace shardproof {
namespace {  // each file that includes this has its own copy, for its own instructions

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// So many columns are read at once: their sum in float32 is added in float64. While one stretch is
// computed, the next one is fetched.
constexpr int64_t kStretch = 1024;

// Fetches the place one stretch after `count` columns; it may lie outside of the row.
template <class Element>
inline void fetch_ahead(const Element* columns, int64_t count) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(Element)), kCacheLine = int64_t{64};
  const uintptr_t place = reinterpret_cast<uintptr_t>(columns) + kStretch * kSize;
  for (int64_t offset = 0; offset < count * kSize; offset += kCacheLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(place + offset));
  }
}

// x = n ln 2 + r with |r| <= ln 2 / 2; exp(x) = 2^n exp(r). Coefficients: Cephes, expf.
inline Floats exp_lanes(Floats x) {
  constexpr float kRounding = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Floats shifted = x * 1.44269504088896341f + kRounding;
  const Floats n = shifted - kRounding;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Words power = ((Words)shifted - 0x4b400000u + 127u) << 23;  // 2^n
  const Floats result = p * (Floats)power;
  return x < -87.0f ? Floats{} : result;
}

template <class Element>
inline float largest_of(const Element* logits, int64_t columns) {
  constexpr int64_t kStep = 4 * kLanes;
  Floats largest[4];
  for (Floats& lanes : largest) lanes = Floats{} + kMinusInfinity;
  int64_t i = 0;
  for (; i + kStep <= columns; i += kStep) {
    for (int64_t k = 0; k < 4; ++k) {
      const Floats x = load_lanes(logits + i + k * kLanes);
      largest[k] = x > largest[k] ? x : largest[k];
    }
  }
  for (; i < columns; i += kLanes) {
    const Floats x = columns - i >= kLanes ? load_lanes(logits + i)
                                           : load_rest(logits + i, columns - i, kMinusInfinity);
    largest[0] = x > largest[0] ? x : largest[0];
  }
  float out = kMinusInfinity;
  for (const Floats& lanes : largest) {
    for (int64_t k = 0; k < kLanes; ++k) out = lanes[k] > out ? lanes[k] : out;
  }
  return out;
}

template <class Element>
RowSum row_sum(const Element* logits, int64_t columns, float scale) {
  float max = kMinusInfinity;  // of the columns so far
  double total = 0;
  for (int64_t begin = 0; begin < columns; begin += kStretch) {
    const int64_t end = begin + kStretch < columns ? begin + kStretch : columns;
    const float here = largest_of(logits + begin, end - begin);
    if (here > max) {
      if (max != kMinusInfinity) total *= std::exp(static_cast<double>(max - here) * scale);
      max = here;
    }
    const float base = max == kMinusInfinity ? 0 : max;
    Floats even = {}, odd = {};
    int64_t i = begin;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      fetch_ahead(logits + i, 2 * kLanes);
      even += exp_lanes((load_lanes(logits + i) - base) * scale);
      odd += exp_lanes((load_lanes(logits + i + kLanes) - base) * scale);
    }
    for (; i < end; i += kLanes) {
      even += exp_lanes((load_rest(logits + i, end - i, kMinusInfinity) - base) * scale);
    }
    total += static_cast<double>(sum_of_lanes(even + odd));
  }
  return {.max = max, .sum = static_cast<float>(total)};
}

template <class Element>
float row_total(const Element* logits, int64_t columns, float base) {
  double total = 0;
  for (int64_t begin = 0; begin < columns; begin += kStretch) {
    const int64_t end = begin + kStretch < columns ? begin + kStretch : columns;
    Floats even = {}, odd = {};
    int64_t i = begin;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      even += load_lanes(logits + i) - base;
      odd += load_lanes(logits + i + kLanes) - base;
    }
    for (; i < end; i += kLanes) even += load_rest(logits + i, end - i, base) - base;
    total += static_cast<double>(sum_of_lanes(even + odd));
  }
  return static_cast<float>(total);
}

inline Floats exp_terms(Floats logits, const ExpTerms& terms) {
  return exp_lanes((logits - terms.max) * terms.scale) * terms.factor + terms.addend;
}

template <class Element, class Out>
void exp_row(const Element* logits, int64_t columns, const ExpTerms& given, Out* out) {
  const ExpTerms terms = given;  // a copy cannot overlap `out`
  int64_t i = 0;
  for (; i + kLanes <= columns; i += kLanes) {
    fetch_ahead(logits + i, kLanes);
    store_lanes(exp_terms(load_lanes(logits + i), terms), out + i);
  }
  if (i == columns) return;
  Out rest[kLanes];
  store_lanes(exp_terms(load_rest(logits + i, columns - i, kMinusInfinity), terms), rest);
  for (int64_t k = 0; i + k < columns; ++k) out[i + k] = rest[k];
}

constexpr RowKernels kKernelsHere = {.sum_float = row_sum<float>,
                                     .sum_bfloat16 = row_sum<uint16_t>,
                                     .total_float = row_total<float>,
                                     .total_bfloat16 = row_total<uint16_t>,
                                     .exp_float = exp_row<float, float>,
                                     .exp_bfloat16 = exp_row<uint16_t, uint16_t>,
                                     .exp_bfloat16_to_float = exp_row<uint16_t, float>};

}  // namespace
}  // namespace shardproof
