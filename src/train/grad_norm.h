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
  // The axes over which ranks compute the same tokens: tp. At least one.
  std::vector<std::string> model_axes = {"tp"};
  // The device on which the communicators move tensors; none: that of the gradients.
  std::optional<at::Device> device = {};
};

// The p-norm over all parameters, (sum |g|^p)^(1/p).
//
//   grads     one per parameter, this rank's shard, reduced; may have no elements
//   returns   scalar in the gradients' dtype, on `device`, the same on every rank
//
// Forward   all_reduce(sum; max for infinity) of one number over each axis of tokens that cuts a
//           parameter, then over model_axes. Every rank makes all calls, even if it holds no
//           element.
at::Tensor grad_norm(const std::vector<ParameterPtr>& parameters,
                     const std::vector<at::Tensor>& grads, MeshComm& comm,
                     const GradNormOptions& options = {});

// Multiplies `grads` in place by min(1, max_norm / (norm + 1e-6)); does nothing for max_norm <= 0.
void clip_grads(const std::vector<at::Tensor>& grads, const at::Tensor& norm, double max_norm);

}  // namespace shardproof
