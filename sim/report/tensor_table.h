// Groups the rows of all ranks of a case by tensor, for the heatmap of the report.
#pragma once

#include <nlohmann/json.hpp>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim::report {

// An array in the golden's order; tensors that the golden lacks come last. See reports/README.md.
nlohmann::ordered_json tensor_table(const judge::CaseResult& result);

// The same in a few lines: of each step and phase the number of tensors, and for each rank one
// digest of them all.
nlohmann::ordered_json digest_table(const judge::CaseResult& result);

}  // namespace shardproof::sim::report
