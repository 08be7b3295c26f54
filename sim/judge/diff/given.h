// Whether the ranks of a reference layout gave every element that a rank compares.
#pragma once

#include <string>

#include "sim/case/record/golden_record.h"
#include "sim/judge/diff/index_plan.h"

namespace shardproof::sim::judge {

// Says how many elements of the plan no rank gave, or fewer ranks than the others; "" when all are
// there, as they are in the golden of one device.
std::string not_given(const GoldenTensor& golden, const IndexPlan& plan);

}  // namespace shardproof::sim::judge
