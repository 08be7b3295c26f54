// The best single factor of two tensors: actual = factor * golden.
#pragma once

#include <cstdint>

namespace shardproof::sim::judge {

struct FactorSums {
  double golden = 0, product = 0, actual = 0;  // sums of squares
  int64_t count = 0;                           // golden elements other than 0

  void add(double a, double g) {
    golden += g * g;
    product += g * a;
    actual += a * a;
    count += g != 0;
  }
  double factor() const { return golden > 0 ? product / golden : 0; }
  // Whether the factor leaves at most this share of the actual values.
  bool fits(double slack) const {
    return golden > 0 && actual - factor() * product <= slack * slack * actual;
  }
};

}  // namespace shardproof::sim::judge
