// The plain function of the linear layers, for any cut.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// y = x W^T (+ bias) of the full "x", "weight" and, with option bias, "bias". With option frozen
// the weight has no gradient.
WorkloadTensors plain_linear(const TensorsByName& full, const Options& options);

// Throws Error(kRefused) where the caller is to add a bias that the layer does not have.
void refuse_to_skip_no_bias(const Options& options);

}  // namespace shardproof::sim
