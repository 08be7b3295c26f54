// Finishes the gradients of parameters that tp ranks hold equal copies of but use on different
// tokens or heads: each rank's gradient is then one addend of the true one.
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

// Writes the sums over the addends among `grads` (one per parameter, this rank's shard, defined).
//
//   forward   all_reduce(sum) of each, in order, labelled "grad.<parameter>"
//   backward  none: these are gradients already
//
// Once per optimizer step, after the last microbatch. All ranks give the same parameters in the
// same order. A parameter that a rank did not use counts as zeros there: give zeros, not nothing.
// `device` is where the communicators move tensors (gradients that are offloaded go there and
// back); none: where the gradients are.
void reduce_partial_gradients(const std::vector<ParameterPtr>& parameters,
                              std::vector<at::Tensor>& grads, MeshComm& comm,
                              std::optional<at::Device> device = {});

}  // namespace shardproof
