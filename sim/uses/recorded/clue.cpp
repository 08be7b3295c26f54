#include "sim/uses/recorded/clue.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/count_of.h"
#include "sim/case/record/magnitude.h"
#include "sim/judge/diff/factor_sums.h"
#include "sim/uses/recorded/gradients.h"
#include "sim/uses/recorded/placement.h"

namespace shardproof::sim::recorded {
namespace {

// Whether all ranks hold addends of this part, whose sum is the reference.
bool holds_addends(const std::vector<const Gradient*>& peers) {
  std::vector<double> sum(peers.front()->actual.size());
  for (const Gradient* peer : peers) {
    if (peer->actual.size() != sum.size() || peer->is_right()) return false;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += peer->actual[i];
  }
  return peers.front()->is_right(sum);
}

// Names the first such gradient in the order in which they were computed.
std::string missing_sum(const RecordedRun& run, const std::vector<Gradient>& gradients) {
  int64_t first = std::numeric_limits<int64_t>::max();
  std::string text;
  for (const std::string& axis : run.mesh.names()) {
    using Key = std::tuple<std::string, Place, std::vector<int64_t>, int64_t>;
    std::map<Key, std::vector<const Gradient*>> groups;
    for (const Gradient& one : gradients) {
      const RecordedPiece& piece = *one.piece;
      groups[{piece.name, piece.place, piece.shape, run.mesh.peers_along(axis, piece.rank).front()}]
          .push_back(&one);
    }
    for (const auto& [key, peers] : groups) {
      const RecordedPiece& piece = *peers.front()->piece;
      const bool is_unordered = piece.order < 0;  // after those that have an order
      const int64_t order = is_unordered ? std::numeric_limits<int64_t>::max() - 1 : piece.order;
      if (std::ssize(peers) != run.mesh.size(axis) || order >= first) continue;
      if (!holds_addends(peers)) continue;
      first = order;
      const judge::IndexPlan plan = plan_of(piece);
      text = fmt::format(
          "the sum over {} is missing where {}{} gets its gradient: the sum of the ranks' values "
          "is the reference there",
          axis, parameter_of(piece.kind, piece.name),
          plan.layout.empty() ? "" : " (" + plan.layout + ")");
    }
  }
  return text;
}

// A scalar that the ranks of an axis should have computed equally.
std::string unequal_copies(const RecordedRun& run, const judge::Divergence& found) {
  std::map<int64_t, const RecordedPiece*> by_rank;
  for (const RecordedPiece& piece : run.pieces) {
    const bool same = piece.name == found.tensor && piece.step == found.step;
    if (same && piece.global_shape.empty() && piece.values.holds<double>()) {
      by_rank.emplace(piece.rank, &piece);
    }
  }
  for (const MeshAxis& axis : run.mesh.axes()) {
    for (const auto& [rank, piece] : by_rank) {
      const auto& addends = piece->partial_axes;
      if (std::find(addends.begin(), addends.end(), axis.name) != addends.end()) continue;
      for (const int64_t peer : run.mesh.peers_along(axis.name, rank)) {
        const auto other = by_rank.find(peer);
        if (other == by_rank.end()) continue;
        const double here = *piece->values.data<double>();
        const double there = *other->second->values.data<double>();
        if (here == there) continue;
        return fmt::format(
            "the ranks of {} do not agree ({:.8g} on rank {}, {:.8g} on rank {}): each computes it "
            "from its own part of a tensor, or from another batch",
            axis.name, here, rank, there, peer);
      }
    }
  }
  return "";
}

// Of a scalar that some ranks gave for more microbatches of the step than others: a step of these
// took values of the next in.
std::string unequal_microbatches(const RecordedRun& run, const judge::Divergence& found) {
  std::map<int64_t, int64_t> counts;  // by rank
  for (const RecordedPiece& piece : run.pieces) {
    const bool same = piece.name == found.tensor && piece.step == found.step;
    counts[piece.rank] += same && piece.global_shape.empty();
  }
  std::erase_if(counts, [](const auto& one) { return one.second == 0; });
  const auto fewest = std::ranges::min_element(counts, {}, [](auto& one) { return one.second; });
  const auto most = std::ranges::max_element(counts, {}, [](auto& one) { return one.second; });
  if (counts.empty() || fewest->second == most->second) return "";
  return fmt::format(
      "rank {} recorded it {} times in this step and rank {} {}: an optimizer did "
      "not step there where it does on others, or a microbatch is missing",
      most->first, most->second, fewest->first,
      fewest->second == 1 ? "once" : fmt::format("{} times", fewest->second));
}

// The one factor of a gradient on all ranks in a step; unset when it has none.
std::optional<double> factor_in_step(const RecordedRun& run, const Reference& reference,
                                     const std::string& tensor, int64_t step) {
  constexpr double kFits = 1e-6;
  judge::FactorSums sums;
  for (const Gradient& one : pieces_beside(run, reference, step, [&](const RecordedPiece& piece) {
         return piece.name == tensor;
       })) {
    for (size_t i = 0; i < one.actual.size(); ++i) sums.add(one.actual[i], one.expected[i]);
  }
  if (!(sums.actual > 0) || !sums.fits(kFits)) return std::nullopt;
  return sums.factor();
}

// A size of the mesh is the same in each step, and a number of tokens is not.
std::string other_factor_later(const RecordedRun& run, const Reference& reference,
                               const judge::Divergence& found) {
  if (found.worst.kind != ObservationKind::kGradient) return "";
  const auto now = factor_in_step(run, reference, found.tensor, found.step);
  if (!now || std::fabs(*now - 1) < 1e-6) return "";
  for (int64_t step = found.step + 1; step <= run.steps; ++step) {
    const auto then = factor_in_step(run, reference, found.tensor, step);
    if (!then) return "";
    if (std::fabs(*then - *now) <= 1e-4 * std::fabs(*now)) continue;
    return fmt::format(
        "a number that changes from batch to batch, such as a count of tokens: at step {} the "
        "factor is {:.6g}, and a size of the mesh would be the same",
        step, *then);
  }
  return "";
}

// "the gradients of rank 1 are wrong, those of rank 0 are right", where a value of all ranks is
// wrong.
std::string guilty_ranks(const RecordedRun& run, const Reference& reference,
                         const judge::Divergence& found) {
  std::set<int64_t> wrong, right;
  for (const Gradient& one : gradients_of(run, reference, found.step)) {
    (one.is_right() ? right : wrong).insert(one.piece->rank);
  }
  for (const int64_t rank : wrong) right.erase(rank);
  const bool is_shared = static_cast<int64_t>(found.ranks.size()) == run.world_size;
  if (!is_shared || wrong.empty() || right.empty()) return "";
  return fmt::format("the gradients of {} are wrong, those of {} are right", ranks_text(wrong),
                     ranks_text(right));
}

// The name up to the component, with its dot, that says router; "" if none does.
std::string layer_of_router(const std::string& name) {
  for (const std::string component : {"router", "gate"}) {
    const size_t at = name.find("." + component + ".");
    if (at != name.npos) return name.substr(0, at + 1);
  }
  return "";
}

// Whether a scalar is a whole number of times too large or too small.
bool is_whole_factor(const judge::ResultRow& row) {
  const double larger = std::max(std::fabs(row.actual_value), std::fabs(row.golden_value));
  const double smaller = std::min(std::fabs(row.actual_value), std::fabs(row.golden_value));
  const double times = std::round(larger / smaller);
  return smaller > 0 && times > 1 && std::fabs(larger - times * smaller) <= 1e-9 * larger;
}

// Of a wrong loss: that all outputs of the step are right on all ranks.
std::string wrong_loss_alone(const RecordedRun& run, const Reference& reference,
                             const judge::Divergence& found) {
  const bool follows = found.worst.kind == ObservationKind::kLoss &&
                       found.last_good.ends_with(kOutputSuffix) && found.worst.problem.empty();
  if (!follows) return "";
  const auto is_output = [&](const RecordedPiece& piece) {
    return piece.step == found.step && piece.kind == ObservationKind::kOutput;
  };
  const auto outputs = pieces_beside(run, reference, found.step, is_output);
  const auto is_right = [](const Gradient& one) { return one.is_right(); };
  if (std::ssize(outputs) != std::ranges::count_if(run.pieces, is_output) ||
      !std::ranges::all_of(outputs, is_right)) {
    return "";
  }
  return fmt::format(
      "all outputs of modules that both runs recorded in this step are right, {} the last of them: "
      "the loss is computed from other labels, with another mask, or as another mean of its terms; "
      "or what lies between is wrong",
      found.last_good);
}

bool has_loss(const RecordedRun& run, const Reference& reference, int64_t step) {
  return reference.record.find(Phase::kForward, step, "loss") &&
         std::any_of(run.pieces.begin(), run.pieces.end(), [&](const RecordedPiece& piece) {
           return piece.kind == ObservationKind::kLoss && piece.step == step;
         });
}

// The first wrong gradient is a router's. The loss, which comes before it, and the experts'
// gradients of its layer are right.
std::string wrong_router_alone(const std::vector<Gradient>& gradients,
                               const judge::Divergence& found) {
  const std::string layer = layer_of_router(found.tensor);
  if (layer.empty() || found.worst.kind != ObservationKind::kGradient) return "";
  int64_t experts = 0;
  for (const Gradient& one : gradients) {
    const std::string& name = one.piece->name;
    const bool is_expert =
        name.starts_with(layer) && name.find("expert", layer.size()) != name.npos;
    if (!is_expert || name == found.tensor) continue;
    if (!one.is_right()) return "";
    ++experts;
  }
  if (experts == 0) return "";
  return fmt::format(
      "an auxiliary loss of the router (its balance, or a z-loss) has another weight than in the "
      "reference, such as the tokens of one rank or of one microbatch; or the gradient of the "
      "experts' probabilities has: the loss and the gradients of {}experts are right",
      parameter_of(ObservationKind::kGradient, layer));
}

// What is missing, in the words of one who records a run.
std::string why_nobody_recorded(ObservationKind kind) {
  using enum ObservationKind;
  if (kind == kGradient) {
    return "the parameter got no gradient on any rank, or the optimizer that is recorded does not "
           "hold it";
  }
  if (kind == kParameter) return "no rank has this parameter in the model it records";
  if (kind == kLoss) {
    return "this run does not record it in that step: call rec.scalar(\"loss\", ..) in each step, "
           "as the reference does";
  }
  if (kind == kLogprobs) return "this run does not call rec.logprobs(..) where the reference does";
  return "the optimizer of this run keeps no such state, or is not the one that is recorded";
}

// Of a wrong output of a module: that the error begins in the module, whose weights were right
// after the step before, and how these are cut. "" if a weight was wrong, or none is known.
std::string wrong_module(const RecordedRun& run, const Reference& reference,
                         const judge::Divergence& found) {
  if (found.worst.kind != ObservationKind::kOutput || !found.tensor.ends_with(kOutputSuffix) ||
      !found.worst.problem.empty()) {
    return "";
  }
  const std::string module = found.tensor.substr(0, found.tensor.size() - kOutputSuffix.size());
  std::string cut;
  bool has_weights = false;
  for (const Gradient& one :
       pieces_beside(run, reference, found.step - 1, [&](const RecordedPiece& piece) {
         return piece.kind == ObservationKind::kParameter &&
                parameter_of(piece.kind, piece.name).starts_with(module + ".");
       })) {
    if (!one.is_right()) return "";
    has_weights = true;
    const RecordedPiece& piece = *one.piece;
    for (size_t dim = 0; cut.empty() && dim < piece.shape.size(); ++dim) {
      if (piece.shape[dim] == piece.global_shape[dim]) continue;
      cut = fmt::format(
          "; ranks hold parts of {} along dim {}, so their outputs are summed or joined",
          parameter_of(piece.kind, piece.name), dim);
    }
  }
  if (!has_weights) return "";
  return fmt::format(
      "the error begins in {}, or in what it is given: its weights {} were right{}; a "
      "missing sum, positions or a mask, rows of another part of the batch, or weights that were "
      "changed since{}",
      module, found.step == 1 ? "at the start" : fmt::format("after step {}", found.step - 1),
      found.last_good.empty() ? "" : ", and so is " + found.last_good + " before it", cut);
}

}  // namespace

void add_clue(const RecordedRun& run, const Reference& reference, judge::Divergence& found) {
  if (found.kind == ResultKind::kMissing && found.ranks.empty()) {
    found.pattern = "the reference has it, and no rank of this run recorded it";
    found.likely = why_nobody_recorded(found.worst.kind);
    return;
  }
  if (found.kind == ResultKind::kMissing && found.step > 0) {
    std::string without = ranks_without_step(run, found.step, {});
    if (without.empty()) without = ranks_without_state(run, found);
    if (!without.empty()) {
      found.likely = without;
      return;
    }
  }
  const bool has_rows = found.worst.kind != ObservationKind::kGradient &&
                        found.worst.kind != ObservationKind::kParameter &&
                        !is_optimizer_state(found.worst.kind);
  if (found.kind == ResultKind::kMissing && has_rows) {
    const std::string rows = rows_of_nobody(run, found);
    if (!rows.empty()) {
      found.likely = rows;
      found.worst.layout.clear();  // of a piece that is there
      return;
    }
  }
  // Where a rank skipped a step, what it has of later ones is of others than the reference's.
  std::string absent;
  if (found.kind != ResultKind::kMissing && found.step > 0)
    absent = ranks_without_step(run, run.steps, found.ranks);
  if (absent.empty() && found.step > 0) absent = absent_gradients(run, reference, found);
  if (!absent.empty()) {
    found.likely = absent;
    return;
  }
  if (found.kind != ResultKind::kValues) return;
  if (explain_experts(run, reference, found) || found.step == 0) return;
  if (explain_stale_number(reference, found)) return;
  const judge::ResultRow& worst = found.worst;
  const std::string settings =
      worst.kind == ObservationKind::kClipFactor ? other_clip(run, reference)
      : is_stepped(worst.kind)
          ? other_settings(run, reference, parameter_of(worst.kind, worst.name), found.step)
          : "";
  if (!settings.empty()) {
    found.likely = settings;
    return;
  }
  for (const auto& clue_of : {clue_of_state, unclipped_update, other_decay, clue_of_norm}) {
    const std::string known = clue_of(run, reference, found);
    if (known.empty()) continue;
    found.likely = known;
    return;
  }
  const std::string later = other_factor_later(run, reference, found);
  if (!later.empty()) {
    found.likely = later + (found.likely.empty() ? "" : "; of this step alone: " + found.likely);
    return;
  }
  const bool is_scalar = found.phase == Phase::kForward && worst.global_shape.empty();
  const bool is_no_cause = found.likely.empty();
  std::string clue = is_scalar && is_no_cause ? unequal_microbatches(run, found) : "";
  if (clue.empty() && is_scalar) clue = unequal_copies(run, found);
  if (clue.empty() && is_no_cause) {
    const std::vector<Gradient> gradients = gradients_of(run, reference, found.step);
    clue = missing_sum(run, gradients);
    if (clue.empty()) clue = clue_of_edges(run, reference, found);
    if (clue.empty()) clue = left_from_step_before(run, reference, found.step);
    if (clue.empty()) clue = clue_of_batch_parts(gradients, run.mesh, found.ranks);
    if (clue.empty() && has_loss(run, reference, found.step)) {
      clue = wrong_router_alone(gradients, found);
    }
  }
  if (clue.empty() && (found.phase == Phase::kForward || is_no_cause)) {
    clue = clue_of_experts(run, gradients_of(run, reference, found.step));
  }
  if (found.phase == Phase::kForward) {
    const std::string copy = changed_copy(run, reference, found.step);
    if (!copy.empty()) clue = copy + (clue.empty() ? "" : "; " + clue);
  }
  if (is_scalar && clue.empty()) {
    const std::string guilty = guilty_ranks(run, reference, found);
    if (!guilty.empty()) clue = guilty + (is_no_cause ? "" : "; " + found.likely);
  }
  if (clue.empty() && is_no_cause) clue = wrong_loss_alone(run, reference, found);
  if (clue.empty() && found.likely.empty()) clue = wrong_module(run, reference, found);
  if (!clue.empty()) found.likely = clue;
  // A loss does not tell the size of an axis from another count, which no run records.
  const bool names_counts = found.likely.find("a count of") != std::string::npos;
  if (is_scalar && clue.empty() && !is_no_cause && !names_counts && is_whole_factor(found.worst)) {
    found.likely += "; or a count of tokens or microbatches is off by that factor";
  }
}

}  // namespace shardproof::sim::recorded
