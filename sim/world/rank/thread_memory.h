// Settings of the allocators of a process with many rank threads.
#pragma once

#include <cstdint>

namespace shardproof::sim::world {

// Call it before the first tensor of a process whose threads are `rank_count` ranks. With many
// ranks, memory that each thread keeps adds up: MKL frees its packing buffers (1 MB a thread) after
// each product, and the C library gives threads that take turns (run_slots.h) as many arenas as
// there are cores, so that one rank takes the memory that another has freed. A few ranks keep their
// memory, which is slightly faster.
void share_memory_between_ranks(int64_t rank_count);

}  // namespace shardproof::sim::world
