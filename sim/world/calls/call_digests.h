// Hashes of what one rank sends and receives in each call, for the judge to compare.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/mesh_comm.h"
#include "sim/case/rank_ending.h"

namespace shardproof::sim {

class RankClock;

// Lives on one rank's thread. A part costs one pass over its bytes at the call, or at wait(); of a
// CUDA tensor also its copy to the CPU. Takes no virtual time. Calls past the communicators, which
// carry no label, are not told of.
class CallDigests {
 public:
  explicit CallDigests(RankClock* clock = nullptr) : clock_(clock) {}
  CallDigests(const CallDigests&) = delete;
  CallDigests& operator=(const CallDigests&) = delete;

  // Backends whose calls are hashed: of what the caller gives and of what it gets. They must not
  // outlive this.
  BackendFactory wrap(BackendFactory factory);
  void on_step(int64_t step) { step_ = step; }

  struct Sides {
    std::vector<at::Tensor> tensors;  // each hashed by itself
    bool together = false;            // one hash over all
  };
  // A call begins, and its results are there. The number is the call's.
  size_t sent(CallDigest call, const Sides& inputs);
  void received(size_t number, const Sides& outputs);

  // In the order of the calls; those whose wait() never returned are left out.
  std::vector<CallDigest> take();

 private:
  RankClock* clock_;
  int64_t step_ = 0;
  std::vector<CallDigest> calls_;
  std::vector<bool> done_;
};

}  // namespace shardproof::sim
