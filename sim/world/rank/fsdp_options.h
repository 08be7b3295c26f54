// The sharding of parameters as options of the sharded stack, without LibTorch.
#pragma once

#include "parallel/data/shard_axes.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim::world {

FsdpOptions fsdp_options(const ParallelSpec& spec);
// The axes of this case that shard and copy parameters. Throws Error(kRefused) when the number of
// copies of a hybrid model does not divide dp.
ShardAxes shard_axes_of(const ParallelSpec& spec);

}  // namespace shardproof::sim::world
