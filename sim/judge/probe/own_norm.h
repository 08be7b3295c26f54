// Judges a norm's output on one rank below float64: the output must follow from the input and the
// weight that the rank's own layer read. The formula is written here again, in float64 (Zhang and
// Sennrich, arXiv:1910.07467):
//
//   y = x / sqrt(mean(x^2) + eps) * w          Gemma: * (1 + w)
//
// Norms are computed in the wider type and rounded once (model/precision.h). An element is wrong
// when its error exceeds half a unit in the last place of its dtype plus 32 eps of float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "observe/probe.h"

namespace shardproof::sim::judge {

// What the model's configuration says of its norms.
struct NormRule {
  std::function<double(const std::string& observation)> eps;
  bool adds_one = false;  // the stored weights are the distance from 1
};

// Returns "" when the output follows and when `observation` has no inputs; otherwise a sentence.
// `local` is the tensor of the observation, contiguous on the CPU and below float64.
std::string own_norm_problem(const NormRule& rule, const Observation& observation,
                             const at::Tensor& local);

}  // namespace shardproof::sim::judge
