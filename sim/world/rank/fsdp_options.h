// How a case shards parameters, in the sharded stack's own words. No LibTorch here.
#pragma once

#include "parallel/data/shard_axes.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim {

FsdpOptions fsdp_options(const ParallelSpec& spec);

}  // namespace shardproof::sim
