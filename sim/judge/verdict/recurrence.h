// Cases that are judged a second time: with few members of a golden something was wrong, and with
// all of them nothing is.
#pragma once

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim::judge {

// Whether more members of the golden may change the verdict. Scatters only grow with more members,
// so a tensor that few leave unresolved is unresolved by all; nor do members explain a rank that
// died, a copy that differs or a call that altered its data.
bool is_open(const CaseResult& result);
// Whether `later`, a second run of the case with more members, explains every tensor that was wrong
// in `first`: each rank computed the same bytes again, or its error is within the later allowance.
bool explains(const CaseResult& later, const CaseResult& first);
// Says in a mismatch that a second run did not show it.
void does_not_recur(CaseResult& first);

}  // namespace shardproof::sim::judge
