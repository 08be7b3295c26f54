// A case as options of the sharded stack.
#pragma once

#include "parallel/data/shard_axes.h"
#include "policy/planned_model.h"
#include "sim/case/case_spec.h"
#include "train/trainer.h"

namespace shardproof::sim::world {

// The names were checked when the scenario or command line was read (asserted).
TrainOptions train_options(const CaseSpec& spec);
TensorParallelOptions tensor_parallel_options(const ParallelSpec& spec);
ParallelOptions parallel_options(const ParallelSpec& spec);
// Those of a whole case: with its first values and its path of scoring.
ParallelOptions parallel_options(const CaseSpec& spec);
// The batch that this rank trains on: its own, or that of the first rank of its tp group. Every
// rank makes the same call.
Batch batch_as_read(const CaseSpec& spec, const Batch& own, const RankSetup& setup);
// Whether rank 0 alone reads the weights, from a folder, and sends every rank its shards.
bool root_deals_weights(const CaseSpec& spec);

// The sharding of parameters as options of the sharded stack, without LibTorch.

FsdpOptions fsdp_options(const ParallelSpec& spec);
// The axes of this case that shard and copy parameters. Throws Error(kRefused) when the number of
// copies of a hybrid model does not divide dp.
ShardAxes shard_axes_of(const ParallelSpec& spec);

}  // namespace shardproof::sim::world
