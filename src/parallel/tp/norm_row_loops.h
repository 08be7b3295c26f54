// The loops of norm_rows.h in vectors of eight lanes, for the instruction set of the including
// file.
#pragma once

#include <cstdint>

#include "parallel/tp/norm_rows.h"
#include "tensor/float_lanes.h"

namespace shardproof {
namespace {  // each including file has its own copy, for its instruction set

template <class Element>
inline void store_rest(Floats lanes, int64_t count, Element* to) {
  Element rest[kLanes];
  store_lanes(lanes, rest);
  for (int64_t i = 0; i < count; ++i) to[i] = rest[i];
}

// The squares of the stored values, which are rounded.
template <class Element>
inline Floats squares_of(const Element* stored) {
  const Floats values = load_lanes(stored);
  return values * values;
}

template <class Element>
float add_row(const Element* addend, const Element* residual, Element* sum, int64_t width) {
  constexpr int64_t kStretch = 1024;  // columns summed in float32; such sums are added in float64
  double total = 0;
  for (int64_t begin = 0; begin < width; begin += kStretch) {
    const int64_t end = begin + kStretch < width ? begin + kStretch : width;
    Floats even = {}, odd = {};
    int64_t i = begin;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      store_lanes(load_lanes(addend + i) + load_lanes(residual + i), sum + i);
      even += squares_of(sum + i);
      const int64_t next = i + kLanes;
      store_lanes(load_lanes(addend + next) + load_lanes(residual + next), sum + next);
      odd += squares_of(sum + next);
    }
    for (; i < end; i += kLanes) {
      const int64_t count = end - i < kLanes ? end - i : kLanes;
      store_rest(load_rest(addend + i, count, 0) + load_rest(residual + i, count, 0), count,
                 sum + i);
      const Floats stored = load_rest(sum + i, count, 0);
      even += stored * stored;
    }
    total += static_cast<double>(sum_of_lanes(even + odd));
  }
  return static_cast<float>(total);
}

template <class Element>
void scale_row(const Element* x, const Element* weight, float factor, Element* out, int64_t width) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    store_lanes(load_lanes(x + i) * factor * load_lanes(weight + i), out + i);
  }
  const int64_t count = width - i;
  if (count == 0) return;
  store_rest(load_rest(x + i, count, 0) * factor * load_rest(weight + i, count, 0), count, out + i);
}

constexpr NormRows kNormRowsHere = {.add_float = add_row<float>,
                                    .add_bfloat16 = add_row<uint16_t>,
                                    .scale_float = scale_row<float>,
                                    .scale_bfloat16 = scale_row<uint16_t>};

}  // namespace
}  // namespace shardproof
