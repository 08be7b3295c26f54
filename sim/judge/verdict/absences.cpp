#include "sim/judge/verdict/absences.h"

#include <algorithm>

namespace shardproof::sim::judge {
namespace {

// A policy's refits, on the ranks that it sends weights, or any other tensor, on those of the mesh.
bool can_hold(Holds holds, ObservationKind kind) {
  return (holds == Holds::kRefits) == (kind == ObservationKind::kRefit);
}

void add_to(Absence& absence, const Unobserved& missing, int64_t rank) {
  if (absence.ranks.empty()) absence.tensor = &missing;
  absence.ranks.push_back(rank);
  absence.whole = absence.whole && missing.microbatches.empty();
}

using TensorOfStage = std::pair<GoldenPosition, int64_t>;

TensorOfStage of_stage(const Unobserved& missing, int64_t rank, const StepMeshes& meshes) {
  return {golden_position(missing.step, missing.phase, missing.order),
          meshes.at(missing.step).coordinate("pp", rank)};
}

// The excuses that do not hold, as another rank of the same stage has observed the tensor.
std::map<GoldenPosition, Absence> refuted(const std::vector<RankReport>& reports,
                                          const StepMeshes& meshes) {
  std::map<TensorOfStage, int64_t> lacking;
  std::map<TensorOfStage, Absence> excused;
  int64_t ranks = 0;
  for (const RankReport& report : reports) {
    if (report.holds != Holds::kEverything) continue;
    ++ranks;
    for (const Unobserved& missing : report.unobserved) {
      if (!can_hold(report.holds, missing.kind)) continue;
      const TensorOfStage place = of_stage(missing, report.rank, meshes);
      ++lacking[place];
      if (missing.excuse) add_to(excused[place], missing, report.rank);
    }
  }
  std::map<GoldenPosition, Absence> found;
  for (auto& [place, absence] : excused) {
    const int64_t stages = meshes.at(absence.tensor->step).size("pp");
    if (lacking[place] < ranks / stages) found.emplace(place.first, std::move(absence));
  }
  return found;
}

}  // namespace

std::map<GoldenPosition, Absence> absences(const std::vector<RankReport>& reports,
                                           const StepMeshes& meshes) {
  std::map<Holds, size_t> counts;
  for (const RankReport& report : reports) ++counts[report.holds];
  std::map<GoldenPosition, std::map<Holds, Absence>> missed;
  std::map<GoldenPosition, Absence> elsewhere;
  for (const RankReport& report : reports) {
    for (const Unobserved& missing : report.unobserved) {
      if (missing.excuse && missing.excuse != Excuse::kElsewhere) continue;
      if (!can_hold(report.holds, missing.kind)) continue;
      const GoldenPosition here = golden_position(missing.step, missing.phase, missing.order);
      add_to(missing.excuse ? elsewhere[here] : missed[here][report.holds], missing, report.rank);
    }
  }
  const auto refits = counts.find(Holds::kRefits);
  const size_t of_mesh = reports.size() - (refits == counts.end() ? 0 : refits->second);
  std::map<GoldenPosition, Absence> found = refuted(reports, meshes);
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
