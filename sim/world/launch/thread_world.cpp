#include "sim/world/launch/thread_world.h"

#include <fmt/format.h>

namespace shardproof::sim::world {
namespace {

// The time that the worker has to stop its ranks after an abort.
constexpr std::chrono::milliseconds kAbortGrace{1500};

}  // namespace

void ThreadWorld::start(Workers& workers) {
  const WorkerSetup setup{
      .backend = key_.backend, .device = key_.device, .world_size = key_.world_size, .rank = -1};
  add_worker(workers.start(setup, {.board = board_.fd(), .node = {}}));
}

void ThreadWorld::worker_died(size_t worker, const std::string& how) {
  const std::string output = printed_by(worker, kLinesOfOutput);
  const int64_t culprit = board_.crashed_rank();
  const std::string fact =
      fmt::format("the process of the emulated world {}{}", how,
                  culprit < 0 ? "" : fmt::format(" on the thread of rank {}", culprit));
  const std::string quote = output.empty() ? "" : "; the last lines it printed:\n" + output;
  for (int64_t rank = 0; rank < key_.world_size; ++rank) {
    const bool guilty = culprit < 0 || culprit == rank;
    set_ending(rank, guilty ? ResultKind::kDied : ResultKind::kAborted,
               fact + (guilty ? quote : ""));
  }
  finish();
}

void ThreadWorld::hung(const std::string& limit) {
  if (std::exchange(abort_sent_, true)) return;
  const std::string why =
      workers_[0]->stopped() ? "the process of the world is stopped by a signal; " + limit : limit;
  workers_[0]->send(FrameType::kAbort, why);
  after(kAbortGrace, [this, why] {
    for (int64_t rank = 0; rank < key_.world_size; ++rank) {
      set_ending(rank, ResultKind::kHung, why);
    }
    settle();
  });
}

// The ranks print into one stream: it stands at the first that failed itself.
void ThreadWorld::add_facts(std::vector<RankEnding>& endings) {
  for (RankEnding& ending : endings) {
    if (ended_well(ending) || ending.kind == ResultKind::kAborted) continue;
    ending.printed = printed_by(0, kLinesPrinted);
    return;
  }
}

}  // namespace shardproof::sim::world
