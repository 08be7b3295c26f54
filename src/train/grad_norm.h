// The norm of all gradients of a model that is cut over tp, and clipping by it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/mesh_comm.h"
#include "model/slot.h"

namespace shardproof {

// The 2-norm over all parameters, each element of the full gradient counted once: where ranks hold
// equal copies only the first of them counts. (Seed 002, get_grad_norm, counts parameters that tp
// replicates once per tp rank.)
//
//   grads     one per parameter, this rank's shard, reduced, equal over dp
//   returns   scalar in the gradients' dtype, the same on every rank
//
// Forward   all_reduce(sum) of one number over tp
at::Tensor grad_norm(const std::vector<ParameterPtr>& parameters,
                     const std::vector<at::Tensor>& grads, MeshComm& comm);

// Scales `grads` in place by min(1, max_norm / (norm + 1e-6)); max_norm <= 0: leaves them alone.
void clip_grads(const std::vector<at::Tensor>& grads, const at::Tensor& norm, double max_norm);

}  // namespace shardproof
