// Workload refit: a sharded trainer passes its weights to inference ranks outside of it.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// The case's mesh is that of the inference side, dp replicas of tp ranks. The last `replicas` of
// them are receivers; the first ranks are the trainer, on a separate mesh; the others are idle.
//
//   dp 3 x tp 3, trainer dp 2 x tp 2, one replica      0 1 2 3 trainer, 4 5 idle, 6 7 8 receive
//
// Options: trainer_dp, trainer_cp, trainer_tp; data_parallel (replicate | fsdp | hybrid, two
// copies); precision of the trainer; dtype at the receivers; budget_bytes; path (broadcast |
// shared_memory); replicas; kv_heads, tied, biases of the model; family.
//
// Outputs: "param.<key>" of every weight and buffer at every receiver, by its own layout; in a
// lower dtype its bits, which must equal those of the full weight after the cast. Rank 0 of the
// trainer throws when its full tensors exceed the budget or outlive the refit.
Workload refit_workload();

}  // namespace shardproof::sim
