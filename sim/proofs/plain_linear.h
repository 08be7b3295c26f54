// The plain function of the linear layers, for any cut.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// y = x W^T (+ bias) of the full "x", "weight" and, with option bias, "bias". With option frozen
// the weight has no gradient.
WorkloadTensors plain_linear(const TensorsByName& full, const Options& options);

}  // namespace shardproof::sim
