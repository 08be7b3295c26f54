// Which ranks did not observe what they hold.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "sim/case/policy_stages.h"
#include "sim/judge/diff/result_row.h"

namespace shardproof::sim::judge {

// One golden tensor, and the ranks that did not observe it although they had to.
struct Absence {
  const Unobserved* tensor = nullptr;  // of the first of these ranks
  std::vector<int64_t> ranks = {};
  bool of_all = false;  // these are all ranks of the mesh, or all of the refit
  bool whole = true;    // each of them lacks it wholly, not in some microbatches alone
};

// The golden's tensors that a rank that holds them did not observe, without an excuse: each rank of
// a model's mesh holds all but those that only ranks of refits observe. What excuses a rank,
// excuses all ranks of its pipeline stage: where one of them observed the tensor, the others had
// to. Which ranks hold a tensor of another workload, or of a recorded run, only they know: there
// one observer suffices, and coverage demands every element.
std::map<GoldenPosition, Absence> absences(const std::vector<RankReport>& reports,
                                           const StepMeshes& meshes);

}  // namespace shardproof::sim::judge
