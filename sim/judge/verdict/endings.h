// The verdict of a case in which not every rank finished.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim::judge {

struct EndingVerdict {
  Verdict verdict;  // all as in CaseResult
  ResultKind kind;
  std::string message;
};

// Returns the cause among the endings, in this order: died, internal, disagreement, threw,
// in_flight, deadlock, never_waited, hung, aborted. Then come refused and bad_input, which stand
// only when no other rank finished or entered a collective. Empty when all ranks finished.
std::optional<EndingVerdict> judge_endings(const std::vector<RankEnding>& endings);

}  // namespace shardproof::sim::judge
