// How a tensor travels: in which dtype and contiguous buffer a backend gets it.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/communicator.h"

namespace c10d {
class Backend;
struct ReduceOp;
}  // namespace c10d

namespace shardproof::wire {

bool is_half(at::ScalarType dtype);
// The tensor itself, or its copy on the backend's device: NCCL moves the tensors of one GPU only,
// and control data (sizes, names, failures) lie on the CPU. A copy waits for the GPU.
at::Tensor on_device_of(const c10d::Backend& backend, const at::Tensor& tensor);
// A tensor for calls that move data: on the backend's device, contiguous, and bool as uint8
// (backends have no bool).
at::Tensor for_moving(const c10d::Backend& backend, const at::Tensor& tensor);
// The result with the dtype and the device of `like`.
at::Tensor moved_back(const at::Tensor& tensor, const at::TensorOptions& like);

// For calls that reduce: the dtype in which the backend reduces a contiguous copy, and its op.
struct Reduction {
  at::ScalarType dtype;
  ReduceOp op;
};
Reduction reduction_for(at::ScalarType dtype, ReduceOp op, const BackendAbilities& abilities);
c10d::ReduceOp to_c10d(ReduceOp op);
// Throws Error(kRefused) for an average of integers or bool.
void check_reduction(at::ScalarType dtype, ReduceOp op, std::string_view label);

// Divides `sum` by a number of ranks, in place. (By a number, at::div multiplies with the rounded
// reciprocal on a GPU; NCCL and the CPU divide.)
void divide(const at::Tensor& sum, int64_t count);
// Reduces `pieces` [n, ..] over dim 0 in order and rounds once; half types are summed in float32.
at::Tensor reduce_in_order(const at::Tensor& pieces, ReduceOp op);

}  // namespace shardproof::wire
