// A probe whose observations a function sees first, and may keep from it.
#pragma once

#include <functional>

#include "observe/probe.h"

namespace shardproof::sim::world {

class WatchedProbe final : public Probe {
 public:
  using Watch = std::function<bool(const Observation&)>;
  WatchedProbe(Probe& inner, const Watch& watch) : inner_(inner), watch_(watch) {}

  bool listens(Phase phase) const override { return inner_.listens(phase); }
  void observe(const Observation& observation) override {
    if (watch_(observation)) inner_.observe(observation);
  }

 private:
  Probe& inner_;
  const Watch& watch_;
};

}  // namespace shardproof::sim::world
