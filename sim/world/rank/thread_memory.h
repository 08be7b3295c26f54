// How the allocators of a process behave that holds many rank threads.
#pragma once

#include <cstdint>

namespace shardproof::sim {

// Before the first tensor of a process whose threads are that many ranks. What each thread would
// keep for itself adds up: MKL's packing buffers (1 MB a thread) are given back after each product,
// and the C library gives threads that take turns (run_slots.h) as many arenas as there are cores,
// so that the memory which one rank frees is what the next one takes. A few ranks keep what is
// theirs: that is faster by a little.
void share_memory_between_ranks(int64_t rank_count);

}  // namespace shardproof::sim
