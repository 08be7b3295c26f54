// Finishes the gradients of parameters that tp ranks hold equal copies of but use on different
// tokens or heads: each rank's gradient is then one addend of the true one.
//
//   sequence-parallel norms, row-parallel biases with SP    summed over partial_grad_axes
//   k_proj, v_proj with kv heads fewer than tp              summed over the sharers of a head
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/mesh_comm.h"
#include "model/slot.h"

namespace shardproof {

// Replaces the addends among `grads` (one per parameter, this rank's shard, defined) by their sums.
//
//   forward   all_reduce(sum) of each, in order, labelled "grad.<parameter>"
//   backward  none: these are gradients already
//
// Once per optimizer step, after the last microbatch. All ranks give the same parameters in the
// same order. A parameter that a rank did not use counts as zeros there: give zeros, not nothing.
void reduce_partial_gradients(const std::vector<ParameterPtr>& parameters,
                              std::vector<at::Tensor>& grads, MeshComm& comm);

// The same on the parameters' own .grad; an undefined one counts as zeros.
void reduce_partial_gradients(const std::vector<ParameterPtr>& parameters, MeshComm& comm);

// Over how many tp ranks each element of the parameter is repeated; 1 for one that tp cuts. A norm
// that sums over all tp ranks divides by it, or lets one of them count.
int64_t copies_over_tp(const Parameter& parameter, const Mesh& mesh);

}  // namespace shardproof
