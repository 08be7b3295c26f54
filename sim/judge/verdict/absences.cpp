#include "sim/judge/verdict/absences.h"

#include <algorithm>

namespace shardproof::sim::judge {
namespace {

// A policy's refits, on the ranks that it sends weights, or any other tensor, on those of the mesh.
bool can_hold(Holds holds, ObservationKind kind) {
  return (holds == Holds::kRefits) == (kind == ObservationKind::kRefit);
}

}  // namespace

std::map<GoldenPosition, Absence> absences(const std::vector<RankReport>& reports) {
  std::map<Holds, size_t> counts;
  for (const RankReport& report : reports) ++counts[report.holds];
  std::map<GoldenPosition, std::map<Holds, Absence>> missed;
  std::map<GoldenPosition, Absence> elsewhere;
  for (const RankReport& report : reports) {
    for (const Unobserved& missing : report.unobserved) {
      if (missing.excuse && missing.excuse != Excuse::kElsewhere) continue;
      if (!can_hold(report.holds, missing.kind)) continue;
      const GoldenPosition here = golden_position(missing.step, missing.phase, missing.order);
      Absence& absence = missing.excuse ? elsewhere[here] : missed[here][report.holds];
      if (absence.ranks.empty()) absence.tensor = &missing;
      absence.ranks.push_back(report.rank);
      absence.whole = absence.whole && missing.microbatches.empty();
    }
  }
  const auto refits = counts.find(Holds::kRefits);
  const size_t of_mesh = reports.size() - (refits == counts.end() ? 0 : refits->second);
  std::map<GoldenPosition, Absence> found;
  for (const auto& [position, absence] : elsewhere) {
    // No rank holds it. The golden has the stream between any two layers, also within a stage.
    const bool is_within = absence.tensor->kind == ObservationKind::kBoundary;
    if (absence.ranks.size() != of_mesh || is_within) continue;
    found[position] = absence;
    found[position].of_all = true;
  }
  for (auto& [position, absent] : missed) {
    const ObservationKind kind = absent.begin()->second.tensor->kind;
    // Where some ranks of one kind observed it, all of another kind need not hold it.
    const bool observed = std::any_of(counts.begin(), counts.end(), [&](const auto& count) {
      const auto here = absent.find(count.first);
      return can_hold(count.first, kind) &&
             (here == absent.end() || here->second.ranks.size() < count.second);
    });
    for (auto& [holds, absence] : absent) {
      const bool all = absence.ranks.size() == counts[holds];
      if (observed && (all || holds == Holds::kWhatItSays)) continue;
      Absence& here = found[position];
      if (here.ranks.empty()) here.tensor = absence.tensor;
      here.ranks.insert(here.ranks.end(), absence.ranks.begin(), absence.ranks.end());
      here.of_all = !observed;
      here.whole = here.whole && absence.whole;
    }
  }
  return found;
}

}  // namespace shardproof::sim::judge
