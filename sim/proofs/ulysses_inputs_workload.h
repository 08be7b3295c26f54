// Workload: the inputs and outputs of a model that is run by Ulysses ranks.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Sharded: src/parallel/ulysses/slice_inputs.h around a model that looks up each id and scales it
// by its position. Outputs are `position_ids` of the tokens and `gathered`, the model's output.
// Options: samples, tokens (any number), vocab_size, hidden_size.
Workload ulysses_inputs_workload();

}  // namespace shardproof::sim
