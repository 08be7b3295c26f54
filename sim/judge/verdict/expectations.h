// Whether a case came out as its scenario says.
#pragma once

#include <string>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim {

// Sets as_expected and unexpected from the verdict, kind, first tensor of `result`.
void compare_with_expectation(CaseResult& result);

// "" when every rank made as many collectives per axis and op as the scenario expects, else which
// ranks made how many. Axes and ops that the scenario does not name are not counted.
std::string unexpected_collectives(const CaseSpec& spec, const std::vector<RankReport>& reports);

}  // namespace shardproof::sim
