// Hashes of the data that one rank sends and receives in each call, which the judge compares.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/mesh_comm.h"
#include "sim/case/rank_ending.h"

namespace shardproof::sim {

class RankClock;

// Belongs to one rank's thread. Hashes a part in one pass over its bytes, at the call or at wait();
// a CUDA tensor is first copied to the CPU. Takes no virtual time. Ignores calls past the
// communicators, which have no label.
class CallDigests {
 public:
  explicit CallDigests(RankClock* clock = nullptr) : clock_(clock) {}
  CallDigests(const CallDigests&) = delete;
  CallDigests& operator=(const CallDigests&) = delete;

  // Returns backends whose calls are hashed; this must outlive them.
  BackendFactory wrap(BackendFactory factory);
  void on_step(int64_t step) { step_ = step; }

  struct Sides {
    std::vector<at::Tensor> tensors;  // each has a hash
    bool together = false;            // one hash over all
  };
  // The begin of a call, which returns its number, and the arrival of its outputs.
  size_t sent(CallDigest call, const Sides& inputs);
  void received(size_t number, const Sides& outputs);

  // Calls whose wait() has returned, in the order of their begin.
  std::vector<CallDigest> take();

 private:
  RankClock* clock_;
  int64_t step_ = 0;
  std::vector<CallDigest> calls_;
  std::vector<bool> done_;
};

}  // namespace shardproof::sim
