// The optimizer judged apart from everything before it: fed with the golden's gradients, norm,
// state and parameters, its step must give the golden's next parameters (design.md section 6).
#pragma once

#include <functional>

#include "optim/optimizer.h"
#include "sim/record/golden_record.h"
#include "train/trainer.h"

namespace shardproof::sim {

using InitialShard = std::function<at::Tensor(size_t index)>;

// Observes "fed.param.<name>" for every parameter of `trainer` after its step `step` (from 1).
// `initial` gives this rank's shard of the i-th parameter before the first step. float64 runs only;
// no communication.
void observe_fed_optimizer(const Trainer& trainer, const RankSetup& setup,
                           const GoldenRecord& golden, const InitialShard& initial,
                           const OptimizerOptions& options, double max_norm, int64_t step);

}  // namespace shardproof::sim
