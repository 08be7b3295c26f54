// What single rows of the option table do not say of a scenario's blocks: values that follow from
// several keys, and keys that do not go together. build_case calls them after each given key has
// set its member. Each throws Error(kBadInput) at the place in the file.
#pragma once

#include "sim/case/case_spec.h"
#include "sim/case/scenario/settings.h"

namespace shardproof::sim {

// micro_batch_size and batching. Refuses more than one way of batching.
void set_batching(const Settings& settings, CaseSpec& spec);

// Refuses a constant that the optimizer does not have, and constants that exclude each other.
void set_optimizer(const Settings& settings, OptimizerSpec& optimizer);
// Refuses a norm that there is not.
void set_norm_type(const Settings& settings, OptimizerSpec& optimizer);
// `schedulers` and `milestones`. Refuses an unknown name or constant (with the nearest), one out of
// range, milestones that do not fit the schedulers.
void set_schedulers(const Settings& settings, OptimizerSpec& optimizer);

bool has_stages(const Settings& settings);  // its workload is policy
// Stages, from what `spec` has of mesh, batch and microbatches already. Refuses: no stages, or
// stages of another workload; sizes that do not fit the batch or the world; a key of another kind
// of stage; a load before a save.
void set_stages(const Settings& settings, CaseSpec& spec);

// Nodes and digests. Refuses nodes that do not hold the ranks, a straggler or a fault on no rank,
// an unknown axis, a stale buffer at a call that has none before it.
void set_world(const Settings& settings, CaseSpec& spec);

}  // namespace shardproof::sim
