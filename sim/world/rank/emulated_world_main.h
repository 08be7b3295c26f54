// An emulated world in this process: one thread per rank, warm between cases.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sim/world/rank/run_rank.h"

namespace shardproof::sim {

class EmulatedWorldMain {
 public:
  EmulatedWorldMain(int64_t world_size, DeviceKind device, RankHooks hooks,
                    RankMain main = rank_main);
  // Rank threads that still run go on: only the end of the process ends them.
  ~EmulatedWorldMain();
  EmulatedWorldMain(const EmulatedWorldMain&) = delete;
  EmulatedWorldMain& operator=(const EmulatedWorldMain&) = delete;

  // Runs a case to its end on all ranks. One ending per rank: the one that failed has its own kind,
  // those that were stopped because of it are `aborted`. After an abort that some rank did not
  // hear, that rank is `hung` and run() must not be called again.
  std::vector<RankEnding> run(const std::string& request, int golden_fd);
  // From another thread while run() is under way: stops the ranks that wait in a collective or come
  // to one.
  void abort(const std::string& why);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared with the rank threads
};

}  // namespace shardproof::sim
