// What a case's endings mean when not every rank finished.
#pragma once

#include <string>
#include <vector>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim {

struct EndingVerdict {
  std::string verdict, kind, message;  // as in CaseResult
};

// The cause among the endings: died, internal, disagreement, threw, in_flight, deadlock,
// never_waited, hung, aborted; then refused and bad_input, which stand only when every rank that
// went on had not entered a collective. All finished: an empty verdict.
EndingVerdict judge_endings(const std::vector<RankEnding>& endings);

// never_waited, with what finished ranks report of such calls; empty verdict when there are none.
EndingVerdict judge_findings(const std::vector<RankReport>& reports);

}  // namespace shardproof::sim
