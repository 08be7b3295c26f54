// The factor by which the gradients of a step are wrong from the first one on.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/judge/diff/result_row.h"

namespace shardproof::sim::judge {

// The factor of the first tensor of the step's backward in the golden's order, where all ranks that
// hold it have the same one; 0 where they do not, or where it is right.
double factor_of_first_gradient(const std::vector<RankReport>& reports, int64_t step);

}  // namespace shardproof::sim::judge
