#include "sim/world/rank/thread_memory.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "base/freed_memory.h"

namespace shardproof::sim::world {
namespace {

constexpr int64_t kFewRanks = 8;

}  // namespace

void share_memory_between_ranks(int64_t rank_count, bool holds_little) {
  if (rank_count <= kFewRanks) {
    if (holds_little) {
      return_memory_when_freed();
    } else {
      keep_freed_memory(Arenas::kOfThreads);
    }
    return;
  }
  ::setenv("MKL_DISABLE_FAST_MM", "1", /*replace=*/0);  // MKL reads it at its first use
  // Blocks from this size on (a bucket of gradients) are returned to the system at once. By default
  // the C library raises the threshold when the first is freed, and keeps later ones.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  ::mallopt(M_ARENA_MAX, static_cast<int>(std::max(2u, std::thread::hardware_concurrency())));
}

}  // namespace shardproof::sim::world
