// Workload mapping: one differentiable collective of src/collective, over tp.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Options: `mapping`, the function's name (mappings.h, all_to_all.h); `dim`, if it takes one;
// `uneven`: parts by torch.chunk's rule, which each rank of an all_to_all shifts; `elsewhere`: the
// output's gradient also flows elsewhere, and the input is read again ("x_after"), so that neither
// may be overwritten. A tensor that differs between ranks is a full tensor with the ranks as dim 0.
// Without `elsewhere` the sharded function gets strided tensors.
Workload mapping_workload();

}  // namespace shardproof::sim
