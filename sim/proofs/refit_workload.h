// Refit as a workload: a sharded trainer hands its weights to inference ranks outside of it.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// The case's mesh is that of the inference side, dp replicas of tp ranks, of which the last
// `replicas` are receivers; the first ranks are the trainer, on a mesh of its own; others idle.
//
//   dp 3 x tp 3, trainer dp 2 x tp 2, one replica      0 1 2 3 trainer, 4 5 idle, 6 7 8 receive
//
// Options: trainer_dp, trainer_cp, trainer_tp; data_parallel (replicate | fsdp | hybrid, two
// copies); precision of the trainer; dtype at the receivers; budget_bytes; path (broadcast |
// shared_memory); replicas; kv_heads, tied, biases of the model; family.
//
// Outputs: "param.<key>" of every weight and buffer at every receiver, by its own layout; in a
// lower dtype its bits, which must be those of the full weight cast. On the trainer's rank 0 the
// bytes of full tensors that it holds are counted: more than the budget, or any left, throw.
Workload refit_workload();

}  // namespace shardproof::sim
