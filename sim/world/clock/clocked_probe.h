// A probe whose observations take no virtual time.
#pragma once

#include "observe/probe.h"
#include "sim/world/clock/rank_clock.h"

namespace shardproof::sim::world {

// With a null `clock`, time is wall time, and nothing is paused.
class ClockedProbe final : public Probe {
 public:
  ClockedProbe(Probe& inner, RankClock* clock) : inner_(inner), clock_(clock) {}

  bool listens(Phase phase) const override { return inner_.listens(phase); }
  void observe(const Observation& observation) override {
    const ClockPause pause(clock_);
    inner_.observe(observation);
  }

 private:
  Probe& inner_;
  RankClock* clock_;
};

}  // namespace shardproof::sim::world
