// Settings of the allocators of a process with many rank threads.
#pragma once

#include <cstdint>

namespace shardproof::sim::world {

// Call it before the first tensor of a case whose ranks are `rank_count` threads of this process.
// With many ranks, memory that each thread keeps adds up: MKL frees its packing buffers (1 MB a
// thread) after each product, and the C library gives threads that take turns (run_slots.h) as many
// arenas as there are cores, so that one rank takes the memory that another has freed. A few ranks
// keep their memory for their next tensors, as system time falls with the faults for new pages
// (bench/README.md), unless the case `holds_little`: it is measured by what it holds, or is as
// large as the machine.
void share_memory_between_ranks(int64_t rank_count, bool holds_little);

}  // namespace shardproof::sim::world
