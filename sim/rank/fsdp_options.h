// How a case shards parameters, in the sharded stack's own words. No LibTorch here.
#pragma once

#include "parallel/fsdp/shard_axes.h"
#include "sim/scenario/case_spec.h"

namespace shardproof::sim {

FsdpOptions fsdp_options(const ParallelSpec& spec);

}  // namespace shardproof::sim
