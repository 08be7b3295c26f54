// Tests the optimizer alone: with the golden's gradients, norm, state and parameters, a step must
// give the golden's next parameters.
#pragma once

#include <functional>
#include <vector>

#include "model/weights.h"
#include "sim/case/record/golden_record.h"
#include "train/trainer.h"

namespace shardproof::sim::world {

using InitialShard = std::function<at::Tensor(size_t index)>;

// Observes "fed.param.<name>" for every parameter of `trainer` after its last step. `steps` are all
// steps of the optimizer so far, as the golden numbers them (sim/case/policy_stages.h,
// steps_behind). `initial` returns this rank's shard of the i-th parameter before the first step.
// For float64 runs only; no communication.
void observe_fed_optimizer(const Trainer& trainer, const RankSetup& setup,
                           const GoldenRecord& golden, const InitialShard& initial,
                           const OptimizerOptions& options, double max_norm,
                           const std::vector<int64_t>& steps);

// Observes the parameters as of this kind. kInitial is "initial.<name>", before the first step of a
// run or of a policy's life, from which the judge computes the rank's own optimizer
// (sim/judge/probe/own_optimizer.h).
void observe_masters(const Trainer& trainer, Probe& probe, ObservationKind kind);

// The initial shard for weights that the process holds whole.
at::Tensor initial_shard(const Parameter& parameter, const WeightMap& weights,
                         const RankSetup& setup);

}  // namespace shardproof::sim::world
