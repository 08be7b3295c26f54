// One rank as a process, over Gloo or NCCL; its groups stay open between cases.
#pragma once

#include <memory>
#include <string>

#include "comm/store.h"
#include "sim/world/rank/run_rank.h"

namespace shardproof::sim::world {

struct ProcessRankSetup {
  Backend backend = Backend::kGloo;
  DeviceKind device = DeviceKind::kCpu;
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;                                    // picks the GPU for nccl
  std::string listen_host = "127.0.0.1";                     // gloo: the address to listen on
  std::chrono::milliseconds timeout{std::chrono::hours(1)};  // a watchdog outside decides earlier
};

class ProcessRankMain {
 public:
  // `make_store` is called in the first case, so that its failure is that case's ending.
  ProcessRankMain(ProcessRankSetup setup, std::function<StorePtr()> make_store, RankHooks hooks,
                  RankMain main = rank_main);
  ~ProcessRankMain();

  // Runs a case on the calling thread. Never throws.
  RankEnding run(const std::string& request, int golden_fd);

 private:
  struct Groups;
  // The number of this rank's GPU. Where a host has fewer GPUs than ranks, ranks share them; NCCL
  // refuses two ranks of one host on one GPU, so those of the second and later rounds say that they
  // are on other hosts (NCCL_HOSTID), and NCCL connects them by sockets.
  int64_t own_gpu() const;
  ProcessRankSetup setup_;
  std::function<StorePtr()> make_store_;
  RankHooks hooks_;
  RankMain main_;
  std::unique_ptr<Groups> groups_;
};

}  // namespace shardproof::sim::world
