// Which part of each parameter a rank holds, with the experts of a mesh that spreads them.
#pragma once

#include <string>

#include "model/config.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim::describe {

// describe_plan() of the case, where the lines of experts are those of ep, etp and edp. Throws
// Error(kRefused) as the styles do.
std::string plan_table(const CaseSpec& spec, const ModelConfig& config);

}  // namespace shardproof::sim::describe
