// The learning rate's schedulers of a scenario, as the policy's configuration writes them.
//
//   scheduler: {name: torch.optim.lr_scheduler.LinearLR, kwargs: {start_factor: 0.1}}
//   scheduler: [{name: LinearLR, kwargs: {..}}, {name: ConstantLR, kwargs: {..}}, {milestones:
//   [5]}]
#pragma once

#include "sim/case/case_spec.h"
#include "sim/case/scenario/settings.h"

namespace shardproof::sim {

// Fills `schedulers` and `milestones`. Throws Error(kBadInput) with its place: an unknown name or
// constant (with the nearest), one out of range, milestones that do not fit the schedulers.
void read_scheduler(const Settings& settings, OptimizerSpec& optimizer);

}  // namespace shardproof::sim
