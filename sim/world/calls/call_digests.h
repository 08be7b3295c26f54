// Hashes of the data that one rank sends and receives in each call, which the judge compares.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sim/case/rank_ending.h"
#include "sim/world/calls/interceptor.h"

namespace shardproof::sim::world {

class RankClock;

// Belongs to one rank's thread. Hashes a part in one pass over its bytes, at the call or at wait();
// a CUDA tensor is first copied to the CPU. Takes no virtual time. Ignores calls past the
// communicators, which have no label.
class CallDigests {
 public:
  explicit CallDigests(RankClock* clock = nullptr) : clock_(clock) {}
  CallDigests(const CallDigests&) = delete;
  CallDigests& operator=(const CallDigests&) = delete;

  // Hashes the inputs. Returns what hashes the outputs; this must outlive it.
  std::function<void()> before_call(const CallInProgress& call);
  void on_step(int64_t step) { step_ = step; }
  void on_call() { ++calls_made_; }  // of each call, before its before_call

  // Calls whose wait() has returned, in the order of their begin.
  std::vector<CallDigest> take();

 private:
  RankClock* clock_;
  int64_t step_ = 0, calls_made_ = 0;
  std::vector<CallDigest> calls_;
  std::vector<bool> done_;
};

}  // namespace shardproof::sim::world
