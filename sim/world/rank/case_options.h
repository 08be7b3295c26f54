// What a case asks of the sharded stack, in the stack's own words.
#pragma once

#include "parallel/cp/apply.h"
#include "parallel/tp/plan.h"
#include "sim/case/case_spec.h"
#include "train/trainer.h"

namespace shardproof::sim {

// Names were checked when the scenario or command line was read (asserted).
TrainOptions train_options(const CaseSpec& spec);
TensorParallelOptions tensor_parallel_options(const ParallelSpec& spec);
ContextParallelOptions context_parallel_options(const CaseSpec& spec);
// Of weights in a folder rank 0 alone reads the data, and deals every rank of the mesh its shards.
bool root_deals_weights(const CaseSpec& spec);

}  // namespace shardproof::sim
