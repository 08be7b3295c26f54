// How large the terms of linear weights' gradients are: a position t adds dy_t x_t, an outer
// product.
#pragma once

#include <memory>

#include "model/decoder.h"

namespace shardproof::golden {

// Of the backwards since the last call of reset().
struct WeightTerms {
  double most = 0;      // no element of a sum over some of the positions is larger in magnitude
  bool is_sum = false;  // a gradient that may overflow in float16 has terms of several positions
  void reset() { *this = WeightTerms(); }
};

inline constexpr double kLargestHalf = 65504;  // finite in float16

// Wraps every linear of the model. Values and gradients stay as they are.
std::shared_ptr<WeightTerms> watch_weight_terms(Decoder& model);

}  // namespace shardproof::golden
