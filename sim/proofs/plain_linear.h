// The plain twin of the linear layers, whichever way they are cut.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// y = x W^T (+ bias), of the full "x", "weight" and, with option bias, "bias"; option frozen: no
// gradient of the weight.
WorkloadTensors plain_linear(const TensorsByName& full, const Options& options);

}  // namespace shardproof::sim
