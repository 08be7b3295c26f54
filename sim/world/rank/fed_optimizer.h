// The optimizer judged apart from everything before it: fed with the golden's gradients, norm,
// state and parameters, its step must give the golden's next parameters.
#pragma once

#include <functional>
#include <vector>

#include "model/weights.h"
#include "optim/optimizer.h"
#include "sim/case/record/golden_record.h"
#include "train/trainer.h"

namespace shardproof::sim {

using InitialShard = std::function<at::Tensor(size_t index)>;

// Observes "fed.param.<name>" for every parameter of `trainer` after its newest step. `steps`: all
// of the optimizer's so far, as the golden numbers them (sim/case/policy_stages.h, steps_behind).
// `initial` gives this rank's shard of the i-th parameter before the first of them. float64 runs
// only; no communication.
void observe_fed_optimizer(const Trainer& trainer, const RankSetup& setup,
                           const GoldenRecord& golden, const InitialShard& initial,
                           const OptimizerOptions& options, double max_norm,
                           const std::vector<int64_t>& steps);

// Observes "initial.<name>", the parameters before the first step of a run or of a policy's life,
// from which the judge follows the rank's own optimizer (sim/judge/diff/own_optimizer.h).
void observe_initial(const Trainer& trainer, Probe& probe);

// That of weights which every rank of the process has whole.
at::Tensor initial_shard(const Parameter& parameter, const WeightMap& weights,
                         const RankSetup& setup);

}  // namespace shardproof::sim
