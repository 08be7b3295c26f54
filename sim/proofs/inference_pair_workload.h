// Workload inference_pair: row parallel, reduce-scatter, addition, norm, gather, column parallel.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Options: tokens, batch, features, width, out_features; joined (addition and norm in one pass).
// Outputs: "residual" [tokens, batch, width] cut by tokens, "y" cut by features. No gradients.
// Sharded: src/parallel/tp/inference_pair.h.
Workload inference_pair_workload();

}  // namespace shardproof::sim
