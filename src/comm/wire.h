// How a tensor travels: the dtype and the contiguous buffer that a backend is given.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/communicator.h"

namespace c10d {
struct ReduceOp;
}

namespace shardproof::wire {

bool is_half(at::ScalarType dtype);
// For moving data: contiguous; bool as uint8, the same bytes (backends know no bool).
at::Tensor for_moving(const at::Tensor& tensor);
at::Tensor moved_back(const at::Tensor& tensor, at::ScalarType dtype);

// For reducing: a contiguous copy in the dtype that the backend sums in, and the op that it runs.
struct Reduction {
  at::ScalarType dtype;
  ReduceOp op;
};
Reduction reduction_for(at::ScalarType dtype, ReduceOp op, const BackendAbilities& abilities);
c10d::ReduceOp to_c10d(ReduceOp op);
// Throws Error(kRefused) for an average of integers or bool.
void check_reduction(at::ScalarType dtype, ReduceOp op, std::string_view label);

// Reduces `pieces` [n, ..] over dim 0 in the order 0, 1, ..; float16 and bfloat16 in float32,
// rounded once.
at::Tensor reduce_in_order(const at::Tensor& pieces, ReduceOp op);

}  // namespace shardproof::wire
