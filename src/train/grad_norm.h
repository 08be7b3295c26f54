// The norm of all gradients of a model that is cut over the mesh, and clipping by it.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "base/training_choices.h"
#include "comm/mesh_comm.h"
#include "model/slot.h"

namespace shardproof {

struct GradNormOptions {
  double type = 2;  // p > 0, or infinity: the largest magnitude
  NormCopies copies = NormCopies::kOnce;
  // The device on which the communicators move tensors; none: that of the gradients.
  std::optional<at::Device> device = {};
};

// The p-norm over all parameters, (sum |g|^p)^(1/p).
//
//   grads     one per parameter, this rank's shard, reduced; may have no elements
//   returns   scalar in the gradients' dtype, on `device`, the same on every rank
//
// Each element counts on the first of the ranks that hold it. The sums of the parameters are added
// in the order of `parameters`, so that a model has the same norm to the bit however whole
// parameters are spread over ranks.
//
// Forward   all_reduce(sum; max for infinity) of one number per parameter over all ranks. Every
//           rank makes the call, even if it holds no element.
at::Tensor grad_norm(const std::vector<ParameterPtr>& parameters,
                     const std::vector<at::Tensor>& grads, MeshComm& comm,
                     const GradNormOptions& options = {});

// Multiplies `grads` in place by min(1, max_norm / (norm + 1e-6)); does nothing for max_norm <= 0.
void clip_grads(const std::vector<at::Tensor>& grads, const at::Tensor& norm, double max_norm);

}  // namespace shardproof
