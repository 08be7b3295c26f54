#include "sim/world/rank/thread_memory.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

namespace shardproof::sim {
namespace {

constexpr int64_t kFewRanks = 8;

}  // namespace

void share_memory_between_ranks(int64_t rank_count) {
  if (rank_count <= kFewRanks) return;
  ::setenv("MKL_DISABLE_FAST_MM", "1", /*replace=*/0);  // MKL reads it once, when it first runs
  // Larger blocks (a bucket of gradients) go back to the system at once; left to itself the C
  // library would keep them from the second one on.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  ::mallopt(M_ARENA_MAX, static_cast<int>(std::max(2u, std::thread::hardware_concurrency())));
}

}  // namespace shardproof::sim
