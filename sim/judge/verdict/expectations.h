// Compares the result of a case with its scenario's expectation.
#pragma once

#include <string>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim::judge {

// Sets as_expected and unexpected from the verdict, kind and first tensor of `result`.
void compare_with_expectation(CaseResult& result);

// Returns "" when every rank made as many collectives per axis and op as the scenario expects, else
// the counts that differ with their ranks. Axes and ops that it does not name do not count.
std::string unexpected_collectives(const CaseSpec& spec, const std::vector<RankReport>& reports);

// Whether a rank reported a row.
bool observed_anything(const CaseResult& result);

}  // namespace shardproof::sim::judge
