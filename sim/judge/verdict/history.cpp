#include "sim/judge/verdict/history.h"

#include <algorithm>

#include "sim/judge/verdict/call_labels.h"

namespace shardproof::sim::judge {
namespace {

bool same_observation(const ResultRow& a, const ResultRow& b) {
  return a.order == b.order && a.phase == b.phase && a.step == b.step &&
         a.microbatch == b.microbatch && a.name == b.name;
}

}  // namespace

bool names_tensor(const std::string& call, const std::string& tensor) {
  return label_of(call).find(tensor) != std::string::npos;
}

void add_history(const std::vector<RankReport>& reports, Divergence& found) {
  for (const RankReport& report : reports) {
    if (report.rank != found.worst.rank) continue;
    int64_t from = 0;
    for (const ResultRow& row : report.rows) {
      if (same_observation(row, found.worst)) break;
      if (row.outcome != Outcome::kMatch || row.partial) continue;
      found.last_good = row.name;
      from = row.calls_before;
    }
    const auto size = static_cast<int64_t>(report.calls.size());
    const int64_t end = std::min(found.worst.calls_before, size);
    for (int64_t i = std::max<int64_t>(from, 0); i < end; ++i) {
      found.collectives.push_back(report.calls[static_cast<size_t>(i)]);
    }
    return;
  }
}

}  // namespace shardproof::sim::judge
