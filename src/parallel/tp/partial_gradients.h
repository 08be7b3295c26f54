// Reduces the gradients of parameters that tp ranks hold in equal copies but use on different
// tokens or heads: the gradient of each rank is one addend of the true one.
//
//   sequence-parallel norms, row-parallel biases with SP    summed over partial_grad_axes
//   k_proj, v_proj with kv heads fewer than tp              summed over the sharers of a head
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "comm/mesh_comm.h"
#include "model/slot.h"

namespace shardproof {

// Replaces each addend in `grads` (one per parameter, this rank's shard, defined) by the sum.
//
//   forward   all_reduce(sum) of each, in order, labelled "grad.<parameter>"
//   backward  none
//
// Call it once per optimizer step, after the last microbatch. All ranks pass the same parameters in
// the same order; a rank that did not use a parameter passes zeros. The communicators move tensors
// on `device`: gradients elsewhere (offloaded ones) go there and back. Default: their own device.
void reduce_partial_gradients(const std::vector<ParameterPtr>& parameters,
                              std::vector<at::Tensor>& grads, MeshComm& comm,
                              std::optional<at::Device> device = {});

}  // namespace shardproof
