// Freed memory that the process keeps for its next tensors.
#pragma once

#include <cstdint>

namespace shardproof {

// Of the C library: the parts of memory from which threads take blocks.
enum class Arenas {
  kOne,        // every thread can use memory that another freed
  kOfThreads,  // each thread keeps its own, and none waits for another's lock
};

// Keeps the memory of freed tensors, up to 2 GB, for the next ones of their size. By default the C
// library returns large blocks at once, and the system must clear fresh pages for each later one:
// half of the time of a large golden. For processes that run one task after the other. Call it
// before the first tensor.
void keep_freed_memory(Arenas arenas = Arenas::kOne);

// Returns blocks of a quarter of a MB and more at once: the process holds little more than its
// tensors, at the cost of time. keep_freed_memory() ends it.
void return_memory_when_freed();

// Returns the memory if it is more than `bytes`. Call it before a wait of unknown length.
void return_freed_memory(int64_t bytes);

}  // namespace shardproof
