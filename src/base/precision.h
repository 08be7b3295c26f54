// The type of weights and activations, without LibTorch; model/precision.h has its dtypes.
#pragma once

#include "base/enum_names.h"

namespace shardproof {

enum class Precision { kFloat64, kFloat32, kBFloat16, kFloat16 };
constexpr std::array<const char*, 4> names_of(Precision) {
  return {"float64", "float32", "bfloat16", "float16"};
}

}  // namespace shardproof
