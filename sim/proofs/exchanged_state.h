// What a checkpoint would hold: the sharded states of all ranks of a world, brought to each of them
// without a disk.
#pragma once

#include "comm/communicator.h"
#include "parallel/tp/sharded_state.h"

namespace shardproof::sim {

// Every rank's tensors, rank after rank, with their own offsets and replica ids. All ranks give as
// many, of the same keys and shapes in the same order. Two all_gathers.
ShardedState state_of_all_ranks(const ShardedState& own, Communicator& world);

}  // namespace shardproof::sim
