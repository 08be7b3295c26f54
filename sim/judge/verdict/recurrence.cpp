#include "sim/judge/verdict/recurrence.h"

#include <map>
#include <set>
#include <tuple>

namespace shardproof::sim::judge {
namespace {

// A tensor of the case, whichever rank holds it.
using TensorKey = std::tuple<int64_t, Phase, int64_t, std::string, std::string>;

TensorKey key_of(const ResultRow& row) {
  return {row.step, row.phase, row.microbatch, row.name, row.site};
}

}  // namespace

bool is_open(const CaseResult& result) {
  if (result.verdict == Verdict::kMatch) return !result.as_expected;
  return result.verdict == Verdict::kMismatch &&
         (result.kind == ResultKind::kValues || result.kind == ResultKind::kMetrics);
}

bool explains(const CaseResult& later, const CaseResult& first) {
  std::set<TensorKey> wrong;
  for (const RankReport& report : first.reports) {
    for (const ResultRow& row : report.rows) {
      if (row.is_wrong()) wrong.insert(key_of(row));
    }
  }
  std::map<std::pair<int64_t, TensorKey>, const ResultRow*> rows;
  for (const RankReport& report : later.reports) {
    for (const ResultRow& row : report.rows) {
      if (wrong.contains(key_of(row))) rows[{report.rank, key_of(row)}] = &row;
    }
  }
  // A GPU adds in another order each time.
  const bool repeats = first.spec.world.device == DeviceKind::kCpu;
  // An addend is right or wrong with those of the other ranks: all rows of such a tensor count.
  for (const RankReport& report : first.reports) {
    for (const ResultRow& row : report.rows) {
      if (!wrong.contains(key_of(row))) continue;
      const auto found = rows.find({report.rank, key_of(row)});
      if (found == rows.end()) return false;
      const ResultRow& again = *found->second;
      const bool same_bytes = row.digest != 0 && again.digest == row.digest;
      const bool within =
          row.problem.empty() && (row.partial ? !repeats : row.worst_error <= again.allowance);
      if (!same_bytes && !within) return false;
    }
  }
  return true;
}

void does_not_recur(CaseResult& first) {
  const std::string found =
      "a second run of the case, whose golden had more members, computed other values here: a "
      "race, memory that nothing has written, or an input that changed meanwhile";
  if (first.divergence) {
    std::string& likely = first.divergence->likely;
    likely = likely.empty() ? found : found + "; without that, " + likely;
  }
  first.message += (first.message.empty() ? "" : "; ") + found;
}

}  // namespace shardproof::sim::judge
