// Which routes experts of limited capacity keep, written out: every route counts those before it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/moe/capacity.h"

namespace shardproof::golden {

struct DenseKept {
  at::Tensor kept;  // [T, N] bool
  double margin;    // of kProbs: last kept less first dropped weight, the least one
};

//   chosen   [T, N] bool     weights [T, N]     groups: T numbers; less than 0: padding
DenseKept keep_within_capacity(const at::Tensor& chosen, const at::Tensor& weights,
                               const std::vector<int64_t>& groups, const RouterRule& router,
                               const CapacityRule& rule);

}  // namespace shardproof::golden
