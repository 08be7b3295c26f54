// A norm's output judged on one rank below float64, apart from everything else: from the input and
// the weight that the rank's own layer read, the output must follow. The formula is written here
// again, in float64 (Zhang and Sennrich, arXiv:1910.07467):
//
//   y = x / sqrt(mean(x^2) + eps) * w          Gemma: * (1 + w)
//
// Norms are computed in the wider type and rounded once (model/precision.h): an element is wrong
// when it is further away than half a unit in the last place of its dtype and 32 eps of float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "observe/probe.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim {

// "" where it follows, where `observation` has no inputs or the case is float64; else a sentence.
// `local`: its tensor on the CPU, contiguous.
std::string own_norm_problem(const CaseSpec& spec, const Observation& observation,
                             const at::Tensor& local);

}  // namespace shardproof::sim
