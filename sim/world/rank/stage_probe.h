// The probe of a policy's worker, which also makes calls fail.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "observe/probe.h"

namespace torch::autograd {
struct Node;
}

namespace shardproof::sim::world {

class RankClock;

// Thrown by a stage that is to fail.
struct PlannedFailure : std::exception {
  const char* what() const noexcept override { return "a stage of the scenario that fails"; }
};

// Replaces the trainer's step by the moment. In a stage that is to fail it passes nothing on, and
// throws at an observation, of which all ranks make the same ones.
class StageProbe final : public Probe {
 public:
  explicit StageProbe(Probe& probe) : probe_(probe) {}
  bool listens(Phase phase) const override { return left_ >= 0 || probe_.listens(phase); }
  void observe(const Observation& observation) override;
  // The next call throws at its observation of that index, and before an update at the latest.
  void fail_at(int64_t index);
  void pass_on();
  bool ended() const { return ended_; }  // the call threw at the last moment
  // After a failure: throws if something holds what the backward would have needed.
  void check_freed() const;
  int64_t moment = 0;

 private:
  // Of what the forward observed.
  struct Graph {
    std::string name;
    std::weak_ptr<torch::autograd::Node> node;
    bool is_reached_first;  // by a backward
  };
  void fail_in_turn(const Observation& observation);

  Probe& probe_;
  int64_t left_ = -1;  // observations before the failure; -1: none is to come
  bool skips_ = false;
  bool ended_ = false;
  bool threw_in_backward_ = false;
  std::vector<Graph> graphs_;
};

// A probe whose observations take no virtual time. A function sees them first, and may keep them
// from it.
class WatchedProbe final : public Probe {
 public:
  using Watch = std::function<bool(const Observation&)>;
  // An empty `watch` keeps nothing. With a null `clock`, time is wall time.
  WatchedProbe(Probe& inner, const Watch& watch, RankClock* clock)
      : inner_(inner), watch_(watch), clock_(clock) {}

  bool listens(Phase phase) const override { return inner_.listens(phase); }
  void observe(const Observation& observation) override;

 private:
  Probe& inner_;
  const Watch& watch_;
  RankClock* clock_;
};

}  // namespace shardproof::sim::world
