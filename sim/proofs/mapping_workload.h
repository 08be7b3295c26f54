// mapping as a workload: one differentiable collective of src/collective, over tp.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Options: `mapping`, the function's name (mappings.h, all_to_all.h); `dim`, where it takes one;
// `uneven`: parts by torch.chunk's rule, of an all_to_all dealt out anew by each rank; `elsewhere`:
// the output's gradient also flows elsewhere, and the input is read once more ("x_after"): neither
// may be written to. What is different on each rank is a full tensor with the ranks as its dim 0.
// Without `elsewhere` the sharded function is given strided tensors.
Workload mapping_workload();

}  // namespace shardproof::sim
