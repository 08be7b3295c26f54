// What comes before and after a model over the Ulysses ranks, as a workload.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Sharded: src/parallel/ulysses/slice_inputs.h around a model that looks each id up and scales it
// by its position. Outputs are `position_ids` of the tokens and `gathered`, the model's output.
// Options: samples, tokens (of any number), vocab_size, hidden_size.
Workload ulysses_inputs_workload();

}  // namespace shardproof::sim
