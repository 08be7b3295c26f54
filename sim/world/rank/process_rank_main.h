// One rank as a process, over Gloo or NCCL; its groups stay open between cases.
#pragma once

#include <memory>

#include "sim/world/rank/run_rank.h"

namespace shardproof::sim::world {

class ProcessRankMain {
 public:
  explicit ProcessRankMain(WorldSetup setup, RankMain main = rank_main);
  ~ProcessRankMain();

  // Runs a case on the calling thread. Never throws.
  RankEnding run(const CaseSpec& spec, int golden_fd);

 private:
  struct Groups;
  // The number of this rank's GPU. Where a host has fewer GPUs than ranks, ranks share them; NCCL
  // refuses two ranks of one host on one GPU, so those of the second and later rounds say that they
  // are on other hosts (NCCL_HOSTID), and NCCL connects them by sockets.
  int64_t own_gpu() const;
  WorldSetup setup_;
  RankMain main_;
  std::unique_ptr<Groups> groups_;
};

}  // namespace shardproof::sim::world
