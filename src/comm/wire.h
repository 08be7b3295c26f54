// How a tensor travels: in which dtype and contiguous buffer a backend gets it.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/communicator.h"

namespace c10d {
struct ReduceOp;
}

namespace shardproof::wire {

bool is_half(at::ScalarType dtype);
// A tensor for calls that move data: contiguous, and bool as uint8 (backends have no bool).
at::Tensor for_moving(const at::Tensor& tensor);
at::Tensor moved_back(const at::Tensor& tensor, at::ScalarType dtype);

// For calls that reduce: the dtype in which the backend reduces a contiguous copy, and its op.
struct Reduction {
  at::ScalarType dtype;
  ReduceOp op;
};
Reduction reduction_for(at::ScalarType dtype, ReduceOp op, const BackendAbilities& abilities);
c10d::ReduceOp to_c10d(ReduceOp op);
// Throws Error(kRefused) for an average of integers or bool.
void check_reduction(at::ScalarType dtype, ReduceOp op, std::string_view label);

// Reduces `pieces` [n, ..] over dim 0 in order and rounds once; half types are summed in float32.
at::Tensor reduce_in_order(const at::Tensor& pieces, ReduceOp op);

}  // namespace shardproof::wire
