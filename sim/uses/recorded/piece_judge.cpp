#include "sim/uses/recorded/piece_judge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/digest.h"
#include "base/enum_names.h"
#include "base/error.h"
#include "base/precision.h"
#include "sim/case/record/magnitude.h"
#include "sim/judge/diff/roundings.h"
#include "sim/judge/diff/tensor_diff.h"
#include "sim/judge/diff/tolerance.h"
#include "sim/judge/evidence/failing_pieces.h"
#include "sim/judge/evidence/look.h"
#include "sim/uses/recorded/demands.h"
#include "sim/uses/recorded/hashes.h"
#include "sim/uses/recorded/own_step.h"
#include "sim/uses/recorded/placement.h"
#include "sim/uses/recorded/sources.h"

namespace shardproof::sim::recorded {
namespace {

constexpr const char* kFloat64 = "float64";
uint64_t digest_of_part(const RecordedPiece& piece) {
  const Place& place = piece.place;
  uint64_t digest = mix_bits(static_cast<uint64_t>(place.begin * 31 + place.end));
  for (const int64_t start : place.offset) digest = mix_bits(digest * 31 + start);
  for (const int64_t length : piece.shape) digest = mix_bits(digest * 31 + length);
  return digest | 1;
}

// Those that every run of the same script records, whole.
bool is_demanded(const GoldenTensor& tensor) {
  if (tensor.phase == Phase::kStep) {
    return !is_step_scalar(tensor.kind) && !is_optional_state(tensor.kind);
  }
  return tensor.kind == ObservationKind::kLogprobs || tensor.kind == ObservationKind::kLoss;
}

bool is_extra(const RecordedPiece& piece) {
  return piece.phase != Phase::kStep || is_step_scalar(piece.kind) || is_optional_state(piece.kind);
}

// Whether an optimizer's step writes it: its gradients and scalars come before that.
bool is_of_optimizer(const RecordedPiece& piece) {
  return piece.kind != ObservationKind::kGradient && !is_extra(piece);
}

// By step: what is unresolved in one counts in the next. Each rank keeps its order otherwise.
std::vector<const RecordedPiece*> in_order(const RecordedRun& run) {
  std::vector<const RecordedPiece*> pieces;
  for (const RecordedPiece& piece : run.pieces) pieces.push_back(&piece);
  std::stable_sort(pieces.begin(), pieces.end(), [](const auto* a, const auto* b) {
    return std::pair(a->step, is_of_optimizer(*a)) < std::pair(b->step, is_of_optimizer(*b));
  });
  return pieces;
}

class PieceJudge {
 public:
  PieceJudge(const RecordedRun& run, const CaseSpec& spec, const Reference& reference,
             WidenedSums& widened)
      : run_(run),
        spec_(spec),
        reference_(reference),
        golden_(reference.record),
        scattered_(reference.is_scattered()),
        copies_(copies_of(run)),
        sources_(run, reference),
        own_steps_(run, reference),
        widened_(widened) {
    for (const GoldenTensor& tensor : golden_.tensors()) names_.insert(tensor.name);
    reports_.resize(static_cast<size_t>(run.world_size));
    failing_.resize(reports_.size());
    seen_.resize(reports_.size());
    for (size_t rank = 0; rank < reports_.size(); ++rank) {
      reports_[rank].rank = static_cast<int64_t>(rank);
    }
  }

  std::vector<judge::RankReport> judge(const std::function<void(int64_t, int64_t)>& progress) {
    int64_t done = 0;
    for (const RecordedPiece* piece : in_order(run_)) {
      judge(*piece);
      if (progress) progress(++done, std::ssize(run_.pieces));
    }
    for (size_t rank = 0; rank < reports_.size(); ++rank) finish(rank);
    add_absent_pieces(run_, golden_, reports_);
    return std::move(reports_);
  }

 private:
  void judge(const RecordedPiece& piece) {
    const auto rank = static_cast<size_t>(piece.rank);
    const GoldenTensor* golden = golden_.find(piece.phase, piece.step, piece.name);
    if (!golden && is_extra(piece)) return;
    const TensorView& local = piece.values;
    judge::ResultRow row = row_of(piece, local);
    if (golden) {
      seen_[rank].insert(golden->order);
      compare(piece, local, *golden, row);
    } else {
      const auto [near, unknown] = nearest_.emplace(piece.name, "");
      if (unknown) near->second = nearest_name(piece.name, names_);
      row.problem = "the reference has no tensor of this name" +
                    (near->second.empty() ? "" : "; the nearest one is " + near->second);
    }
    if (!row.problem.empty()) row.outcome = judge::Outcome::kMismatch;
    if (row.outcome == judge::Outcome::kUnresolved && !scattered_) sources_.add_unresolved(piece);
    if (row.outcome == judge::Outcome::kMatch || row.is_wrong()) row.judged = row.count;
    reports_[rank].rows.push_back(std::move(row));
  }

  judge::ResultRow row_of(const RecordedPiece& piece, const TensorView& local) const {
    judge::ResultRow row(judge::Outcome::kNotJudged);
    row.kind = piece.kind;
    row.name = piece.name;
    row.phase = piece.phase;
    row.step = piece.step;
    row.microbatch = piece.microbatch;
    row.rank = piece.rank;
    row.partial = !piece.partial_axes.empty();
    row.partial_axes = piece.partial_axes;
    row.dtype = dtype_name(local.dtype());
    row.digest = digest_of(local.bytes(), local.nbytes());
    row.tokens = digest_of_part(piece);
    row.replicas = copies_.at(copy_key(run_, piece));
    row.global_shape = piece.global_shape;
    row.local_shape = piece.shape;
    return row;
  }

  void compare(const RecordedPiece& piece, const TensorView& local, const GoldenTensor& golden,
               judge::ResultRow& row) {
    row.order = golden.order;
    row.golden_scale = golden.scale;
    if (golden.value.sizes() != piece.global_shape) {
      row.problem =
          fmt::format("its global shape is [{}], the reference's is [{}]",
                      fmt::join(piece.global_shape, ", "), fmt::join(golden.value.sizes(), ", "));
      return;
    }
    const bool floating = is_floating(local.dtype());
    if (floating != is_floating(golden.value.dtype())) {
      row.problem = fmt::format("wrong dtype: {}, the reference's is {}", row.dtype,
                                dtype_name(golden.value.dtype()));
      return;
    }
    const judge::IndexPlan plan = plan_of(piece);
    row.layout = plan.layout;
    row.count = plan.count;
    if (is_demanded(golden)) cover(plan, golden, row);
    const std::string narrow = why_not_compared(row, golden, floating);
    if (!narrow.empty() && !all_finite(local)) {
      row.problem = "it is not finite";
      return;
    }
    if (!narrow.empty()) {
      row.outcome = judge::Outcome::kUnresolved;
      row.reason = narrow;
      row.partial = false;  // addends that are not judged are not summed
      row.partial_axes.clear();
      return;
    }
    compare_values(piece, local, golden, plan, row);
  }

  // Without repeats of the reference, nothing tells how much correct runs scatter below float64.
  std::string why_not_compared(const judge::ResultRow& row, const GoldenTensor& golden,
                               bool floating) const {
    if (!floating || scattered_) return "";
    const bool narrow = row.dtype != kFloat64;
    if (!narrow && !is_narrow_there(golden)) return "";
    const std::string what = narrow ? row.name + " is " + row.dtype + " in this run"
                                    : row.name + " is below float64 in the reference";
    if (run_.precision == Precision::kFloat64) return what + "; record both runs in float64";
    return fmt::format(
        "{}, and the reference has {} repeats in {} of the {} that give an allowance; record them "
        "with record(.., noise=k), or both runs in float64",
        what, reference_.repeats, run_.precision, kPerturbed);
  }

  bool is_narrow_there(const GoldenTensor& golden) const {
    return reference_.narrow.contains(record_key(golden.phase, golden.step, golden.name));
  }

  double eps_of(const TensorView& local, const GoldenTensor& golden) const {
    const double here = judge::eps_of_precision(*find_enum<Precision>(dtype_name(local.dtype())));
    return is_narrow_there(golden) ? std::max(here, judge::eps_of_precision(run_.precision)) : here;
  }

  // Below float64: why the allowance is too wide to find a factor of 2 or the loss of half of a
  // sum. Of a parameter after a step, half of the way that it went from its start.
  std::string why_unresolved(const GoldenTensor& golden, double eps) const {
    if (!std::isfinite(golden.scatter)) {
      return "some repeats of the reference overflow there, or skip the step, and others do not";
    }
    const bool stepped = golden.step > 0 && golden.kind == ObservationKind::kParameter;
    const GoldenTensor* start = stepped ? golden_.find(Phase::kStep, 0, golden.name) : nullptr;
    const bool moved = start && start->value.sizes() == golden.value.sizes();
    const double size = moved ? distance_between(start->value, golden.value).largest : golden.scale;
    const double allowed = judge::scatter_allowance(golden, eps);
    if (allowed <= size / 2) return "";
    return fmt::format("rounding in {} may move it by {:.2g}, and its {} is {:.2g}", run_.precision,
                       allowed, moved ? "way from the start" : "largest element", size);
  }

  // Each element counts once, whoever holds it: the rows of a tensor then add up to the whole.
  void cover(const judge::IndexPlan& plan, const GoldenTensor& golden, judge::ResultRow& row) {
    const int64_t size = golden.value.numel();
    std::vector<bool>& held = held_[golden.order];
    held.resize(static_cast<size_t>(size));
    plan.for_each_run([&](int64_t, int64_t global, int64_t length) {
      for (int64_t i = global; i < global + length; ++i) {
        if (held[static_cast<size_t>(i)]) continue;
        held[static_cast<size_t>(i)] = true;
        row.covered += judge::coverage_hash(0, i);
      }
    });
    uint64_t& all = coverage_of_[size];
    for (int64_t i = 0; all == 0 && i < size; ++i)
      row.coverage_of_all += judge::coverage_hash(0, i);
    if (all == 0) all = row.coverage_of_all;
    row.coverage_of_all = all;
  }

  void compare_values(const RecordedPiece& piece, const TensorView& local,
                      const GoldenTensor& golden, const judge::IndexPlan& plan,
                      judge::ResultRow& row) {
    judge::DiffTask task{local, golden, plan, 1, exact_allowance(reference_, golden)};
    if (scattered_ && is_floating(local.dtype())) {  // counts are exact
      const double eps = eps_of(local, golden);
      task.allowance += judge::scatter_allowance(golden, eps);
      row.reason = why_unresolved(golden, eps);
    }
    if (!std::isfinite(task.allowance)) {
      row.outcome = judge::Outcome::kUnresolved;
      row.partial = false;
      row.partial_axes.clear();
      return;
    }
    task.padding_is_zero =
        run_.is_file && golden.kind == ObservationKind::kLogprobs && golden.value.dim() == 2;
    const Source source = is_floating(local.dtype()) ? sources_.of(piece) : Source{};
    if (row.partial) {
      row.outcome = judge::Outcome::kAddend;
      if (!source.is_judged()) {
        widened_[golden.order] = {task.allowance, row.reason};
        widen(source, golden, task, row);
      }
      reports_[static_cast<size_t>(piece.rank)].pieces.push_back(piece_of(piece, row, task));
      return;
    }
    std::string coarse = row.reason;
    judge::DiffResult result = judge::diff(task);
    std::optional<judge::FreeRunningAllowance> added;
    const bool stepped = result.bad_count > 0 && piece.step > 0 && is_of_optimizer(piece);
    const Rule rule = stepped ? rule_of(piece) : Rule{};
    if (stepped && rule.is_known) {
      CaseSpec spec = spec_;
      spec.optimizer = rule.optimizer;
      added = judge::FreeRunningAllowance::of(
          spec, golden_, golden,
          run_.is_file ? judge::KnownGradients::kFirstStep : judge::KnownGradients::kEveryStep,
          rule.rates);
    }
    if (added) {
      task.added = &*added;
      result = judge::diff(task);
    }
    const bool is_free = stepped && (!added || !source.is_judged());
    if (result.bad_count > 0 && is_free) {
      const double eps = eps_of(local, golden);
      if (own_steps_.explain(piece, golden, source, added.has_value(), eps, row)) {
        sources_.add_unresolved(piece);
        return;
      }
    } else if (result.bad_count > 0 && !source.is_judged()) {
      widen(source, golden, task, row);
      result = judge::diff(task);
      if (result.bad_count == 0) {
        row.outcome = judge::Outcome::kUnresolved;
        return;
      }
    }
    row.reason = std::move(coarse);
    judge::take_result(result, task.plan, row);
    if (row.outcome == judge::Outcome::kMatch) check_factor_of(task, row);
    if (row.outcome != judge::Outcome::kMismatch) return;
    row.rounding_only = spec_.precision != Precision::kFloat64;
    const judge::GoldenPosition here = judge::golden_position(row.step, row.phase, row.order);
    judge::FailingPieces& failing = failing_[static_cast<size_t>(piece.rank)];
    if (!failing.wants(here)) return;
    row.evidence = judge::look_closer(task, golden_, spec_.precision);
    failing.keep(piece_of(piece, row, task));
  }

  void widen(const Source& source, const GoldenTensor& golden, judge::DiffTask& task,
             judge::ResultRow& row) const {
    task.allowance += source.allowance(golden.scale, phase_scale_of(reference_, golden));
    row.reason = source.reason;
  }

  // As RankRecorder does: an optimizer's step turns roundings into errors that many elements share.
  void check_factor_of(const judge::DiffTask& task, judge::ResultRow& row) const {
    const bool before_a_step =
        row.step == 1 && (row.phase != Phase::kStep || row.kind == ObservationKind::kGradient);
    if (spec_.precision == Precision::kFloat64 || !before_a_step) return;
    judge::FactorCheck factor = judge::check_factor(task, spec_.precision);
    row.worst_ratio = std::max(row.worst_ratio, factor.used);
    row.problem = std::move(factor.problem);
  }

  struct Rule {
    bool is_known = false;
    OptimizerSpec optimizer = {};
    std::vector<double> rates = {};  // of each step; none: those that the golden recorded
  };

  Rule rule_of(const RecordedPiece& piece) const {
    const ParameterGroup* group = group_of(reference_.groups, parameter_of(piece.kind, piece.name));
    if (!group) return {reference_.knows_optimizer, spec_.optimizer};
    return {group->knows_optimizer, group->optimizer, group->lr};
  }

  judge::Piece piece_of(const RecordedPiece& from, const judge::ResultRow& row,
                        const judge::DiffTask& task) const {
    judge::Piece piece = judge::make_piece(row, task);
    if (from.is_mean) {
      const double share = mean_share(run_.mesh, from);
      for (double& value : piece.actual) value *= share;
    }
    return piece;
  }

  void finish(size_t rank) {
    judge::RankReport& report = reports_[rank];
    for (judge::Piece& piece : failing_[rank].take()) report.pieces.push_back(std::move(piece));
    for (const GoldenTensor& tensor : golden_.tensors()) {
      if (seen_[rank].contains(tensor.order)) continue;
      report.unobserved.push_back({tensor.order, tensor.phase, tensor.step, tensor.kind,
                                   tensor.name, tensor.value.sizes()});
      if (run_.is_file || !is_demanded(tensor))
        report.unobserved.back().excuse = judge::Excuse::kNotInFile;
    }
  }

  const RecordedRun& run_;
  const CaseSpec& spec_;
  const Reference& reference_;
  const GoldenRecord& golden_;
  bool scattered_;  // the repeats tell how much correct runs scatter
  std::map<CopyKey, std::vector<int64_t>> copies_;
  Sources sources_;
  OwnSteps own_steps_;
  WidenedSums& widened_;
  std::map<int64_t, std::vector<bool>> held_;  // elements, by the golden's order
  std::map<int64_t, uint64_t> coverage_of_;    // of a whole tensor, by its number of elements
  std::set<std::string> names_;
  std::map<std::string, std::string> nearest_;  // of names that the reference lacks
  std::vector<judge::RankReport> reports_;
  std::vector<judge::FailingPieces> failing_;
  std::vector<std::set<int64_t>> seen_;
};

}  // namespace

std::vector<judge::RankReport> judge_pieces(const RecordedRun& run, const CaseSpec& spec,
                                            const Reference& reference,
                                            const std::function<void(int64_t, int64_t)>& progress,
                                            WidenedSums& widened) {
  return PieceJudge(run, spec, reference, widened).judge(progress);
}

void settle_widened_sums(const WidenedSums& widened, std::vector<judge::RankReport>& reports) {
  for (judge::RankReport& report : reports) {
    for (judge::ResultRow& row : report.rows) {
      const auto found = widened.find(row.order);
      const bool is_settled = row.partial && row.outcome == judge::Outcome::kUnresolved;
      if (!is_settled || found == widened.end()) continue;
      const auto& [allowance, reason] = found->second;
      if (!(row.worst_error <= allowance)) continue;
      row.reason = reason;
      if (reason.empty()) row.outcome = judge::Outcome::kMatch;
    }
  }
}

}  // namespace shardproof::sim::recorded
