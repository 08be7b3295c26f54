// What this process frees and soon takes again.
#pragma once

#include <cstdint>

namespace shardproof {

// Tensors that are freed stay with the process, up to 2 GB, for the next ones of their size. Left
// to itself the C library gives large ones back at once, and the system must clear fresh pages for
// each that follows: half of the seconds of a large golden. For processes that run one thing after
// the other; call it before the first tensor.
void keep_freed_memory();

// Gives it back if there is more than `bytes` of it: before a wait of unknown length.
void return_freed_memory(int64_t bytes);

}  // namespace shardproof
