// Rules of a scenario's blocks that single rows of the option table cannot express: values that
// follow from several keys, and keys that exclude each other. build_case calls these functions
// after each given key has set its member. Each throws Error(kBadInput) with its position.
#pragma once

#include <string>

#include "base/error.h"
#include "sim/case/case_spec.h"
#include "sim/case/scenario/settings.h"

namespace shardproof::sim {

// Reads something outside of the scenario. Errors give the position of `path` in the scenario.
template <class Read>
auto read_outside(const Settings& settings, const std::string& path, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    settings.fail(path, path + ": " + error.fact(), error.fix());
  }
}

// Sets micro_batch_size and batching. Refuses more than one kind of batching.
void set_batching(const Settings& settings, CaseSpec& spec);

// Refuses a constant that the optimizer does not have, and constants that exclude each other.
void set_optimizer(const Settings& settings, OptimizerSpec& optimizer);
// Those of torch.optim.Muon.
void set_muon_defaults(OptimizerSpec& optimizer);
// Refuses an unknown norm.
void set_norm_type(const Settings& settings, OptimizerSpec& optimizer);
// Sets `schedulers` and `milestones`. Refuses an unknown name or constant (with the nearest known
// one), a value out of range, and milestones that do not fit the schedulers.
void set_schedulers(const Settings& settings, OptimizerSpec& optimizer);

bool has_stages(const Settings& settings);  // its workload is policy
// Sets the stages from the mesh, batch and microbatches of `spec`. Refuses: no stages, or stages of
// another workload; sizes that do not fit the batch or the world; a key of another kind of stage; a
// load before a save.
void set_stages(const Settings& settings, CaseSpec& spec);

// Refuses a reference without a mesh, with a mesh that is none, or equal to the case's layout; and
// one for a case that it cannot judge.
void check_reference(const Settings& settings, const CaseSpec& spec);

// Refuses an axis, or several as dp+cp, that `where` of `path` does not know.
void check_axis(const Settings& settings, const std::string& path, const std::string& axis,
                const std::string& where);

// Sets nodes and digests. Refuses nodes that do not hold the ranks, a straggler or a fault on a
// rank outside of the world, an unknown axis, and a stale buffer at a first call.
void set_world(const Settings& settings, CaseSpec& spec);

}  // namespace shardproof::sim
