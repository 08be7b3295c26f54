// The facts that a rank finds about a wrong tensor of a layer with experts. They need float64, in
// which another computation of the golden's numbers gives a rank's values to the rounding.
#pragma once

#include <vector>

#include "sim/judge/diff/evidence.h"
#include "sim/judge/evidence/values.h"

namespace shardproof::sim::judge {

// Which results of experts a wrong sum of experts adds up; which form of it a wrong sum with a
// shared MLP is; which squares a wrong norm of gradients has; other shares of routes in a balancing
// loss; the experts whose selection bias moved otherwise.
std::vector<Evidence> look_at_experts_of(const DiffTask& task, const Values& now,
                                         const GoldenRecord& golden);

}  // namespace shardproof::sim::judge
