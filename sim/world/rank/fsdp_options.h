// The sharding of parameters as options of the sharded stack, without LibTorch.
#pragma once

#include "parallel/data/shard_axes.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim {

FsdpOptions fsdp_options(const ParallelSpec& spec);
// Throws Error(kRefused) when the number of copies of a hybrid model does not divide dp.
void check_copies(const ParallelSpec& spec);

}  // namespace shardproof::sim
