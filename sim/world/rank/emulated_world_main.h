// An emulated world in this process, with one thread per rank and case.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sim/world/rank/run_rank.h"

namespace shardproof::sim::world {

class EmulatedWorldMain {
 public:
  EmulatedWorldMain(int64_t world_size, DeviceKind device, RankHooks hooks,
                    RankMain main = rank_main);
  // Rank threads that still run continue until the process ends.
  ~EmulatedWorldMain();
  EmulatedWorldMain(const EmulatedWorldMain&) = delete;
  EmulatedWorldMain& operator=(const EmulatedWorldMain&) = delete;

  // Runs a case to its end on all ranks. Returns each rank's ending: ranks that failed have their
  // own kind, those that were stopped are `aborted`. A rank that does not react to an abort is
  // `hung`, and run() must not be called again.
  std::vector<RankEnding> run(const CaseSpec& spec, int golden_fd);
  // Called on another thread during run(): stops the ranks that are in a collective or enter one.
  void abort(const std::string& why);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared with the rank threads
};

}  // namespace shardproof::sim::world
