// What the forward reads in place of a wider parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace shardproof::sim::judge {

// A sentence where `leaf` is not `master`, rounded to its dtype, in every element; else "". An
// update that does not reach the copy changes no master, and the outputs of the next step in low
// precision by less than is allowed.
std::string stale_leaf(const at::Tensor& leaf, const at::Tensor& master);

}  // namespace shardproof::sim::judge
