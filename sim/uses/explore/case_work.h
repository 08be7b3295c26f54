// Whether a drawn case is small enough that thousands run in an hour.
#pragma once

#include "sim/case/case_spec.h"

namespace shardproof::sim::explore {

bool is_small(const CaseSpec& spec);

}  // namespace shardproof::sim::explore
