// Executes the gradient rules of parameters (model/slot.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "comm/mesh_comm.h"
#include "model/slot.h"

namespace shardproof {

// The axes over which the store takes the mean of the parameter's gradient.
std::vector<std::string> mean_axes(const GradientRule& rule,
                                   const std::vector<std::string>& token_axes);

// Replaces each gradient by its sum over GradientRule::sum_over and the holders, and multiplies it
// by the ranks of mean_axes() over those of `token_axes`. `grads` has one per parameter, this
// rank's shard, defined.
//
//   forward   all_reduce(sum) of each that has axes or holders, in order, labelled
//   "grad.<parameter>" backward  none
//
// Call it once per optimizer step, after the last microbatch. All ranks pass the same parameters in
// the same order; a rank that did not use a parameter passes zeros. The communicators move tensors
// on `device`: gradients elsewhere (offloaded ones) go there and back. Default: their own device.
void apply_gradient_rules(const std::vector<ParameterPtr>& parameters,
                          std::vector<at::Tensor>& grads, MeshComm& comm,
                          const std::vector<std::string>& token_axes,
                          std::optional<at::Device> device = {});

}  // namespace shardproof
