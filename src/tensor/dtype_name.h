// The names of dtypes in PyTorch and Hugging Face.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace shardproof {

std::string dtype_name(at::ScalarType dtype);  // "float64", "bfloat16", "bool"

}  // namespace shardproof
