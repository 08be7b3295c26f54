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
// Ranks from `mesh_ranks` on take a policy's weights and have no part in its steps: where every
// rank before them refused, it does not matter that they finished or wait.
std::optional<EndingVerdict> judge_endings(const std::vector<RankEnding>& endings,
                                           int64_t mesh_ranks);

}  // namespace shardproof::sim::judge
