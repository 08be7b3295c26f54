#include "base/freed_memory.h"

#include <malloc.h>

#include <limits>

namespace shardproof {
namespace {

constexpr int kLargestKept = 32 << 20;  // the maximum of the C library
constexpr int kLargestInHeap = 256 << 10;
constexpr int kFreeEndOfHeap = 1 << 20;
// By default a thread's heap grows by as little as it needs, each time by a call of mprotect, for
// which the faults of all other threads wait.
constexpr int kGrowth = 2 << 20, kDefaultGrowth = 128 << 10;

}  // namespace

void keep_freed_memory(Arenas arenas) {
  ::mallopt(M_MMAP_THRESHOLD, kLargestKept);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  ::mallopt(M_TOP_PAD, kGrowth);
  if (arenas == Arenas::kOne) ::mallopt(M_ARENA_MAX, 1);
}

void return_memory_when_freed() {
  ::mallopt(M_MMAP_THRESHOLD, kLargestInHeap);
  ::mallopt(M_TRIM_THRESHOLD, kFreeEndOfHeap);
  ::mallopt(M_TOP_PAD, kDefaultGrowth);
  ::malloc_trim(0);
}

void return_freed_memory(int64_t bytes) {
  if (static_cast<int64_t>(::mallinfo2().fordblks) > bytes) ::malloc_trim(0);
}

}  // namespace shardproof
