// Names of dtypes and groups, as calls show them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace shardproof {

std::string dtype_name(at::ScalarType dtype);  // "float64", "bfloat16", "bool"
// "tp[2,3]"; a long regular list as "world[0,1..511]".
std::string group_name(const std::string& axis, const std::vector<int64_t>& ranks);

}  // namespace shardproof
