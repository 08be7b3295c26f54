// The rows of all ranks of a case gathered by tensor: what the heatmap of the report draws.
#pragma once

#include <nlohmann/json.hpp>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim {

// An array in the golden's order; what the golden does not have comes last. See reports/README.md.
nlohmann::ordered_json tensor_table(const CaseResult& result);

}  // namespace shardproof::sim
