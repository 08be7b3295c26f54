// LibTorch's allocator of CPU memory, with what a tensor_memory.h meter needs kept beside each
// block.
//
// LibTorch's own looks up each block's size in one map behind one mutex while a meter listens, so
// that all rank threads of a process wait for each other, and asks glibc for aligned blocks, which
// glibc cuts out of larger ones instead of keeping freed blocks for each thread.
#pragma once

namespace shardproof {

// Makes tensors from now on come from this allocator, in all threads, but with AddressSanitizer,
// which could not see reads behind a block of ours: then it returns false. Once is enough; further
// calls do nothing. Errors: as LibTorch's allocator, when no memory is left.
bool use_counting_allocator();

}  // namespace shardproof
