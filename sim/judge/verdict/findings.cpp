#include "sim/judge/verdict/findings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "sim/judge/diff/addends.h"
#include "sim/judge/diff/result_row.h"
#include "sim/judge/diff/tolerance.h"
#include "sim/judge/explain/diagnose.h"
#include "sim/judge/explain/wording.h"
#include "sim/judge/verdict/absences.h"
#include "sim/judge/verdict/history.h"
#include "sim/judge/verdict/microbatches.h"

namespace shardproof::sim::judge {
namespace {

using Rows = std::vector<const ResultRow*>;

// The position of a tensor: by the golden's order, then the optimizer that is fed with golden
// gradients. Tensors that the golden lacks come last.
using Place = std::tuple<bool, GoldenPosition, bool>;

bool is_fed(const ResultRow& row) { return row.kind == ObservationKind::kFed; }

Place place_of(const ResultRow& row) {
  const bool unknown = row.order < 0;
  return {unknown, golden_position(row.step, row.phase, row.order), is_fed(row)};
}

// The rows of all ranks by position; rows of one position keep their order by rank and observation.
std::vector<std::pair<Place, const ResultRow*>> placed_rows(
    const std::vector<RankReport>& reports) {
  std::vector<std::pair<Place, const ResultRow*>> placed;
  size_t count = 0;
  for (const RankReport& report : reports) count += report.rows.size();
  placed.reserve(count);
  for (const RankReport& report : reports) {
    for (const ResultRow& row : report.rows) placed.emplace_back(place_of(row), &row);
  }
  std::ranges::stable_sort(placed, [](const auto& a, const auto& b) { return a.first < b.first; });
  return placed;
}

std::vector<int64_t> ranks_in(const Rows& rows) {
  std::set<int64_t> ranks;
  for (const ResultRow* row : rows) ranks.insert(row->rank);
  return {ranks.begin(), ranks.end()};
}

// Returns the first group of copies whose digests differ. Copies that must be equal have the same
// microbatch, tokens, group of replicas and number of observation on their rank.
Rows differing_replicas(const Rows& rows) {
  using Key = std::tuple<int64_t, uint64_t, RankList, bool, int64_t>;
  std::map<Key, Rows> groups;
  std::map<std::tuple<int64_t, int64_t, uint64_t, bool>, int64_t> times;
  for (const ResultRow* row : rows) {
    if (!row->compares_replicas || row->replicas.size() < 2 || !row->problem.empty()) continue;
    const int64_t time = times[{row->rank, row->microbatch, row->tokens, row->partial}]++;
    groups[{row->microbatch, row->tokens, row->replicas, row->partial, time}].push_back(row);
  }
  for (const auto& [key, group] : groups) {
    const uint64_t first = group.front()->digest;
    if (std::ranges::any_of(group, [&](const ResultRow* row) { return row->digest != first; })) {
      return group;
    }
  }
  return {};
}

bool quick_replicas_agree(const Rows& rows) {
  return std::ranges::all_of(rows, [&](const ResultRow* row) {
    return row->digest == rows.front()->digest || !row->compares_replicas ||
           row->replicas.size() < 2;
  });
}

// Whether the rows together hold every required element, each in one piece only.
bool covers_all(const Rows& rows) {
  std::set<uint64_t> pieces;
  uint64_t all = 0;
  for (const ResultRow* row : rows) {
    if (row->coverage_of_all == 0) continue;
    all = row->coverage_of_all;
    pieces.insert(row->covered);
  }
  uint64_t sum = 0;
  for (const uint64_t piece : pieces) sum += piece;
  return all == 0 || sum == all;
}

class Judge {
 public:
  Judge(const CaseSpec& spec, const StepMeshes& meshes, const std::vector<RankReport>& reports,
        const std::map<GoldenPosition, WrongAddends>& addends,
        const std::vector<MicrobatchGolden>& microbatches)
      : spec_(spec),
        meshes_(meshes),
        reports_(reports),
        addends_(addends),
        microbatches_(microbatches) {}

  std::optional<Divergence> first() {
    placed_ = placed_rows(reports_);
    const auto& placed = placed_;
    const auto missing = absences(reports_, meshes_);
    for (size_t start = 0; start < placed.size();) {
      size_t end = start;
      Rows rows;
      while (end < placed.size() && placed[end].first == placed[start].first) {
        rows.push_back(placed[end++].second);
      }
      const GoldenPosition here = std::get<1>(placed[start].first);
      const bool unknown = std::get<0>(placed[start].first);
      if (!missing.empty() && (unknown || missing.begin()->first < here)) {
        return unobserved(missing.begin()->second);
      }
      if (auto found = of_tensor(rows)) return found;
      start = end;
    }
    if (!missing.empty()) return unobserved(missing.begin()->second);
    return std::nullopt;
  }

 private:
  std::optional<Divergence> of_tensor(const Rows& rows) {
    const auto addends = addends_.find(std::get<1>(place_of(*rows.front())));
    if (addends != addends_.end() && !is_fed(*rows.front())) {
      return wrong_addends(rows, addends->second);
    }
    if (std::ranges::any_of(rows, [](const auto* row) { return row->is_wrong(); })) {
      return wrong_values(rows);
    }
    if (!quick_replicas_agree(rows)) {
      const Rows group = differing_replicas(rows);
      if (!group.empty()) return wrong_replicas(group);
    }
    if (!covers_all(rows)) return not_covered(rows);
    return std::nullopt;
  }

  Divergence common(const Rows& rows, ResultKind kind) const {
    Divergence found;
    found.worst = worst_row(rows);
    found.tensor = found.worst.name;
    found.phase = found.worst.phase;
    found.step = found.worst.step;
    found.kind = kind;
    add_history(reports_, found);
    return found;
  }

  static void explain(Divergence& found, const Explanation& why) {
    found.pattern = why.pattern;
    found.likely = why.likely;
  }

  Divergence wrong_values(const Rows& rows) const {
    Divergence found =
        common(rows, worst_row(rows).order < 0 ? ResultKind::kMissing : ResultKind::kValues);
    Rows wrong = rows;
    std::erase_if(wrong, [](const ResultRow* row) { return !row->is_wrong(); });
    found.ranks = ranks_in(wrong);
    const std::vector<const Piece*> pieces = pieces_of(found.worst, false);
    if (outside_of_mesh(found.worst)) {
      const Mesh own = spec_.parallel.inference_mesh();
      explain(found,
              explain_received({own, spec_.precision, rows, pieces}, spec_.parallel.ranks()));
      return found;
    }
    const Symptoms seen = symptoms(rows, pieces, found.step);
    const Explanation why = explain_values(seen);
    explain(found, why);
    if (!seen.wrong_counts.empty()) found.worst.rounding_only = false;
    if (found.worst.kind == ObservationKind::kLoss && (found.likely.empty() || why.is_of_counts))
      add_next_tensor(found);
    return found;
  }

  // A scalar loss fits any algebra, so the first wrong tensor after it in its step says more.
  void add_next_tensor(Divergence& found) const {
    const Place here = place_of(found.worst);
    Rows rows;
    for (const auto& [place, row] : placed_) {
      if (place <= here) continue;
      if (row->step != found.step) break;
      if (!rows.empty() && place_of(*rows.front()) != place) {
        if (std::ranges::any_of(rows, [](auto* r) { return r->is_wrong(); })) break;
        rows.clear();
      }
      rows.push_back(row);
    }
    if (rows.empty() || rows.front()->partial || !worst_row(rows).is_wrong()) return;
    const ResultRow& worst = worst_row(rows);
    const Explanation why = explain_values(symptoms(rows, pieces_of(worst, false), worst.step));
    if (why.likely.empty()) return;
    found.pattern += "; after it in " + worst.name + ": " + why.pattern;
    found.likely = why.likely;
  }

  Divergence wrong_addends(const Rows& rows, const WrongAddends& sums) const {
    if (!sums.lacking.empty()) return lacking_addend(rows, sums);
    Rows addends;
    for (const ResultRow* row : rows) {
      if (row->partial) addends.push_back(row);
    }
    Rows wrong;
    std::vector<const Piece*> pieces;
    for (const ResultRow& row : sums.wrong) wrong.push_back(&row);
    for (const Piece& piece : sums.sums) pieces.push_back(&piece);
    Divergence found = common(wrong, ResultKind::kValues);
    found.ranks = ranks_in(addends);
    Symptoms seen = symptoms(wrong, pieces, found.step);
    const std::vector<const Piece*> held = pieces_of(*addends.front(), true);
    if (!sums.is_mean) seen.addends = held;  // terms that are equal are not sums counted twice
    seen.summed_axes = addends.front()->partial_axes;
    Explanation why = explain_values(seen);
    why.pattern =
        fmt::format("the {} over {}: {}", sums.is_mean ? "mean of the terms" : "sum of the addends",
                    partial_axes(addends), why.pattern);
    if (why.likely.empty()) why.pattern += empty_addends(held);
    explain(found, why);
    if (!seen.wrong_counts.empty()) found.worst.rounding_only = false;
    if (found.worst.kind == ObservationKind::kLoss && (found.likely.empty() || why.is_of_counts))
      add_next_tensor(found);
    return found;
  }

  // "; the addend of rank 1 is 0 everywhere", when the addends of other ranks are not.
  static std::string empty_addends(const std::vector<const Piece*>& pieces) {
    std::set<int64_t> empty, ranks;
    for (const Piece* piece : pieces) {
      ranks.insert(piece->rank);
      empty.insert(piece->rank);
    }
    for (const Piece* piece : pieces) {
      const auto is_zero = [](double value) { return value == 0; };
      if (!std::ranges::all_of(piece->actual, is_zero)) {
        empty.erase(piece->rank);
      }
    }
    if (empty.empty() || empty.size() == ranks.size()) return "";
    return words_for_empty_addends({empty.begin(), empty.end()});
  }

  Divergence lacking_addend(const Rows& rows, const WrongAddends& sums) const {
    Divergence found = common(rows, ResultKind::kMissing);
    found.ranks = sums.lacking;
    explain(found, words_for_lacking_addend(sums.lack, partial_axes(rows)));
    return found;
  }

  // "dp, cp": the axes of the first row that is an addend.
  static std::string partial_axes(const Rows& rows) {
    const auto row = std::ranges::find_if(rows, [](auto* r) { return r->partial; });
    return row == rows.end() ? "" : fmt::format("{}", fmt::join((*row)->partial_axes, ", "));
  }

  Divergence wrong_replicas(const Rows& group) const {
    Divergence found = common(group, ResultKind::kReplicas);
    found.ranks = ranks_in(group);
    if (outside_of_mesh(found.worst)) return found;
    explain(found, explain_replicas({mesh_at(group), spec_.precision, group, {}}));
    return found;
  }

  Divergence not_covered(const Rows& rows) const {
    Divergence found = common(rows, ResultKind::kMissing);
    found.ranks = ranks_in(rows);
    explain(found, kUncovered);
    return found;
  }

  Divergence unobserved(const Absence& absence) const {
    const Unobserved& missing = *absence.tensor;
    Divergence found;
    found.tensor = missing.name;
    found.phase = missing.phase;
    found.step = missing.step;
    found.kind = ResultKind::kMissing;
    found.worst.kind = missing.kind;
    found.worst.name = missing.name;
    found.worst.phase = missing.phase;
    found.worst.step = missing.step;
    found.worst.order = missing.order;
    found.worst.rank = absence.ranks.front();
    found.worst.global_shape = missing.global_shape;
    const Mesh& mesh = meshes_.at(missing.step);
    const bool nobody = absence.of_all && absence.whole;
    if (!nobody) found.ranks = absence.ranks;
    explain(found,
            nobody ? kUnobserved : words_for_absence(mesh, absence.ranks, missing.microbatches));
    return found;
  }

  // Whether a policy refits this rank, which lies outside of the mesh.
  bool outside_of_mesh(const ResultRow& row) const {
    return row.rank >= spec_.parallel.mesh().world_size();
  }

  // The mesh on which the rows of one tensor were observed.
  const Mesh& mesh_at(const Rows& rows) const { return meshes_.at(rows.front()->step); }

  std::vector<const Piece*> pieces_of(const ResultRow& row, bool partial) const {
    std::vector<const Piece*> pieces;
    for (const RankReport& report : reports_) {
      for (const Piece& piece : report.pieces) {
        if (piece.partial == partial && piece.order == row.order && piece.step == row.step &&
            piece.phase == row.phase && piece.name == row.name) {
          pieces.push_back(&piece);
        }
      }
    }
    return pieces;
  }

  // The factor of the first tensor of the step's backward in the golden's order, where all ranks
  // that hold it have the same one; 0 where they do not, or where it is right.
  double factor_of_first_gradient(int64_t step) const {
    constexpr double kClose = 1e-6;
    std::optional<int64_t> first;
    double factor = 0;
    for (const auto& [place, row] : placed_) {
      if (row->step != step || row->phase != Phase::kBackward || row->order < 0) continue;
      if (row->order != first.value_or(row->order)) break;
      first = row->order;
      const bool is_scaled = row->is_wrong() && row->factor_residual <= kClose;
      const bool fits = !factor || std::fabs(row->factor - factor) <= kClose * std::fabs(factor);
      if (!is_scaled || !fits) return 0;
      factor = row->factor;
    }
    return factor;
  }

  Symptoms symptoms(const Rows& rows, std::vector<const Piece*> pieces, int64_t step) const {
    Symptoms out{mesh_at(rows), spec_.precision, rows, std::move(pieces)};
    out.microbatch_gradients = microbatch_gradients(microbatches_, rows);
    const ParallelSpec& parallel = parallel_at(spec_, step);
    if (parallel.pp > 1) out.chunks = parallel.pp_options.chunks;
    if (rows.front()->kind == ObservationKind::kLoss) {
      out.gradient_factor = factor_of_first_gradient(step);
    }
    for (const RankReport& report : reports_) {
      for (const ResultRow& row : report.rows) {
        if (row.step != step) continue;
        out.microbatches = std::max(out.microbatches, row.microbatch + 1);
        if (row.kind == ObservationKind::kLossScale && row.is_wrong() && row.golden_value > 0) {
          out.loss_scale_factor = row.actual_value / row.golden_value;
        }
        if (row.kind == ObservationKind::kCount && row.is_wrong()) {
          const auto is_known = [&](const WrongCount& count) { return count.name == row.name; };
          if (std::ranges::none_of(out.wrong_counts, is_known)) {
            out.wrong_counts.push_back({row.name, row.actual_value, row.golden_value});
          }
        }
        // A scalar's scale is its value.
        if (row.kind == ObservationKind::kGradNorm && row.golden_scale > 0 &&
            spec_.optimizer.max_norm > 0) {
          out.clip_ratio = spec_.optimizer.max_norm / (row.golden_scale + kClipEps);
          out.clip_factor = std::min(1.0, out.clip_ratio);
        }
      }
    }
    return out;
  }

  const CaseSpec& spec_;
  const StepMeshes& meshes_;
  const std::vector<RankReport>& reports_;
  const std::map<GoldenPosition, WrongAddends>& addends_;
  const std::vector<MicrobatchGolden>& microbatches_;
  std::vector<std::pair<Place, const ResultRow*>> placed_;
};

}  // namespace

std::optional<Divergence> first_divergence(const CaseSpec& spec, const StepMeshes& meshes,
                                           const std::vector<RankReport>& reports,
                                           const std::map<GoldenPosition, WrongAddends>& addends,
                                           const std::vector<MicrobatchGolden>& microbatches) {
  return Judge(spec, meshes, reports, addends, microbatches).first();
}

}  // namespace shardproof::sim::judge
