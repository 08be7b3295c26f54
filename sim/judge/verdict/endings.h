// The verdict of a case in which not every rank finished.
#pragma once

#include <string>
#include <vector>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim {

struct EndingVerdict {
  std::string verdict, kind, message;  // as in CaseResult
};

// Returns the cause among the endings, in this order: died, internal, disagreement, threw,
// in_flight, deadlock, never_waited, hung, aborted. Then come refused and bad_input, which stand
// only when no other rank finished or entered a collective. Empty when all ranks finished.
EndingVerdict judge_endings(const std::vector<RankEnding>& endings);

// Returns never_waited with the calls that finished ranks report; an empty verdict without any.
EndingVerdict judge_findings(const std::vector<RankReport>& reports);

}  // namespace shardproof::sim
