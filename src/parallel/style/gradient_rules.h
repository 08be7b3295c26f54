// Executes the gradient rules of parameters (model/slot.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "comm/mesh_comm.h"
#include "model/slot.h"

namespace shardproof {

// Replaces each gradient by its sum over GradientRule::sum_over, and divides it by the number of
// ranks of GradientRule::summed_over, whose factor in the loss no mean cancels. `grads` has one per
// parameter, this rank's shard, defined.
//
//   forward   all_reduce(sum) of each that has axes, in order, labelled "grad.<parameter>"
//   backward  none
//
// Call it once per optimizer step, after the last microbatch. All ranks pass the same parameters in
// the same order; a rank that did not use a parameter passes zeros. The communicators move tensors
// on `device`: gradients elsewhere (offloaded ones) go there and back. Default: their own device.
void apply_gradient_rules(const std::vector<ParameterPtr>& parameters,
                          std::vector<at::Tensor>& grads, MeshComm& comm,
                          std::optional<at::Device> device = {});

}  // namespace shardproof
