#include "sim/world/rank/stage_probe.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>

#include "base/error.h"
#include "sim/world/clock/rank_clock.h"

namespace shardproof::sim::world {

void StageProbe::observe(const Observation& observation) {
  if (left_ >= 0) return fail_in_turn(observation);
  Observation at_moment = observation;
  at_moment.step = moment;
  probe_.observe(at_moment);
}

void StageProbe::fail_at(int64_t index) {
  left_ = index;
  skips_ = ended_ = false;
  graphs_.clear();
}

void StageProbe::pass_on() {
  left_ = -1;
  graphs_.clear();
}

// What a backward has not reached when it throws stays in the queue of PyTorch's engine.
void StageProbe::check_freed() const {
  for (const Graph& graph : graphs_) {
    if (graph.node.expired() || (threw_in_backward_ && !graph.is_reached_first)) continue;
    throw_failed(fmt::format("the graph of {} outlives the call that threw", graph.name),
                 "drop it when a call throws", "threw");
  }
}

void StageProbe::fail_in_turn(const Observation& observation) {
  // A rank may hold fewer gradients than others; between them nothing is sent.
  if (observation.kind == ObservationKind::kGradient) return;
  if (observation.phase == Phase::kForward && observation.tensor.grad_fn()) {
    const bool is_last = observation.kind == ObservationKind::kLogprobs;
    graphs_.push_back({observation.name, observation.tensor.grad_fn(), is_last});
  }
  skips_ = skips_ || (observation.kind == ObservationKind::kSkipped &&
                      observation.tensor.item<double>() != 0);
  ended_ = observation.kind == (skips_ ? ObservationKind::kLoss : ObservationKind::kGradNorm);
  if (ended_ || left_-- == 0) {
    left_ = 0;
    threw_in_backward_ = observation.phase != Phase::kForward;
    throw PlannedFailure();
  }
}

void WatchedProbe::observe(const Observation& observation) {
  const ClockPause pause(clock_);
  if (!watch_ || watch_(observation)) inner_.observe(observation);
}

}  // namespace shardproof::sim::world
