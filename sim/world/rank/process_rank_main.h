// One rank as a process, over Gloo or NCCL; its groups stay open between cases.
#pragma once

#include <memory>
#include <string>

#include "comm/store.h"
#include "sim/world/rank/run_rank.h"

namespace shardproof::sim {

struct ProcessRankSetup {
  Backend backend = Backend::kGloo;
  DeviceKind device = DeviceKind::kCpu;
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;  // selects the GPU for nccl
  std::string listen_host =
      "127.0.0.1";  // gloo: the address to listen on; "": this host's own name
  std::chrono::milliseconds timeout{std::chrono::hours(1)};  // a watchdog outside acts earlier
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
  ProcessRankSetup setup_;
  std::function<StorePtr()> make_store_;
  RankHooks hooks_;
  RankMain main_;
  std::unique_ptr<Groups> groups_;
};

// The address at which the ranks of a world meet: a memfd with shared pages (page_store.h), or else
// c10d's store over TCP.
struct StoreAddress {
  int pages = -1;
  std::string host = "127.0.0.1";
  int port = 0;
  bool host_it = false;
  int64_t world_size = 1;
  std::string prefix;  // of all keys
};
// Throws Error(kFailed) when the store cannot be reached, or its port is taken.
StorePtr join_store(const StoreAddress& address);
// Writes a text (not empty), or waits for one and returns it. Throws Error(kFailed).
std::string exchange_text(const StorePtr& store, const std::string& key, const std::string& value);

}  // namespace shardproof::sim
