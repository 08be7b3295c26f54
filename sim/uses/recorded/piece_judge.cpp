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
#include "sim/judge/diff/tolerance.h"
#include "sim/judge/evidence/row_judge.h"
#include "sim/uses/recorded/hashes.h"
#include "sim/uses/recorded/matrix_step.h"
#include "sim/uses/recorded/note.h"
#include "sim/uses/recorded/own_step.h"
#include "sim/uses/recorded/placement.h"
#include "sim/uses/recorded/wide_copies.h"

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

// Whether every run of the same script records it, whole.
bool is_demanded(ObservationKind kind) {
  using enum ObservationKind;
  return kind == kGradient || is_stepped(kind) || kind == kLogprobs || kind == kLoss;
}

// Whether the reference may lack it.
bool is_extra(ObservationKind kind) {
  return kind != ObservationKind::kGradient && !is_stepped(kind);
}

// By step, and what an optimizer writes last: what is unresolved counts in what comes after it.
// Each rank keeps its order otherwise.
std::vector<const RecordedPiece*> in_order(const RecordedRun& run) {
  std::vector<const RecordedPiece*> pieces;
  for (const RecordedPiece& piece : run.pieces) pieces.push_back(&piece);
  std::stable_sort(pieces.begin(), pieces.end(), [](const auto* a, const auto* b) {
    return std::pair(a->step, is_stepped(a->kind)) < std::pair(b->step, is_stepped(b->kind));
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
        wide_(run),
        sources_(run, reference),
        own_steps_(run, reference),
        matrix_steps_(run, reference),
        widened_(widened) {
    for (const GoldenTensor& tensor : golden_.tensors()) names_.insert(tensor.name);
    reports_.resize(static_cast<size_t>(run.world_size));
    seen_.resize(reports_.size());
    for (size_t rank = 0; rank < reports_.size(); ++rank) {
      reports_[rank].rank = static_cast<int64_t>(rank);
      rows_.emplace_back(spec_, golden_);
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
    if (!golden && is_extra(piece.kind)) return;
    const TensorView& local = piece.values;
    judge::ResultRow row = row_of(piece, local);
    if (golden) {
      seen_[rank].insert(golden->order);
      compare(piece, local, *golden, row);
      replay(piece, row);
    } else {
      const auto [near, unknown] = nearest_.emplace(piece.name, "");
      if (unknown) near->second = nearest_name(piece.name, names_);
      row.problem =
          "the reference has no tensor of this name" + also_named(piece, golden_, near->second);
    }
    judge::RowJudge::finish(row);
    if (row.outcome == judge::Outcome::kUnresolved && !scattered_) sources_.add_unresolved(piece);
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
    row.global_shape = piece.global_shape;
    row.local_shape = piece.shape;
    return row;
  }

  void compare(const RecordedPiece& piece, const TensorView& local, const GoldenTensor& golden,
               judge::ResultRow& row) {
    judge::IndexPlan plan = plan_of(piece);
    plan.tokens = digest_of_part(piece);
    plan.replicas = copies_.at(copy_key(run_, piece));
    if (!judge::RowJudge::place(local, golden, plan, row)) return;
    if (is_demanded(golden.kind)) cover(plan, golden, row);
    if (scattered_ && is_floating(local.dtype()) && is_below_the_run(local)) {
      row.problem = fmt::format("it is {} on this rank, and {} is the narrowest dtype of rank 0",
                                row.dtype, run_.precision);
      return;
    }
    if (!scattered_ && wide_.are_elsewhere(piece)) {
      row.problem = fmt::format("it is {} on this rank, and float64 on another", row.dtype);
      return;
    }
    const std::string narrow = why_not_compared(row, golden, is_floating(local.dtype()));
    if (!narrow.empty() && !all_finite(local)) {
      row.problem = "it is not finite";
      return;
    }
    if (!narrow.empty()) {
      row.outcome = judge::Outcome::kUnresolved;
      row.reason = narrow;
      return;
    }
    compare_values(piece, local, golden, plan, row);
  }

  // A matrix optimizer's step is judged by what the rank had, too, where the golden does not tell.
  void replay(const RecordedPiece& piece, judge::ResultRow& row) {
    const bool is_clear = row.outcome == judge::Outcome::kMatch && !scattered_;
    if (is_clear || !row.problem.empty()) return;
    const MatrixVerdict& verdict = matrix_steps_.of(piece);
    if (verdict.kind == MatrixVerdict::Kind::kWrong) row.problem = verdict.text;
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

  static double eps_of(const TensorView& local) {
    return judge::eps_of_precision(*find_enum<Precision>(dtype_name(local.dtype())));
  }

  // What a run allows follows from its precision; a rank must not widen it for itself.
  bool is_below_the_run(const TensorView& local) const {
    return !run_.is_file && eps_of(local) > judge::eps_of_precision(run_.precision);
  }

  double eps_of(const TensorView& local, const GoldenTensor& golden) const {
    const double here = eps_of(local);
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
    if (allowed == 0 || allowed < size / 2) return "";
    return fmt::format("rounding in {} may move it by {:.2g}, and its {} is {:.2g}", run_.precision,
                       allowed, moved ? "way from the start" : "largest element", size);
  }

  // Each element counts once, whoever holds it: the rows of a tensor then add up to the whole.
  void cover(const judge::IndexPlan& plan, const GoldenTensor& golden, judge::ResultRow& row) {
    const int64_t size = golden.value.numel();
    std::vector<bool>& held = held_[golden.order];
    held.resize(static_cast<size_t>(size));
    row.covered = judge::coverage_of(plan, [&](int64_t i) {
      const auto place = held.begin() + i;
      const bool is_first = !*place;
      *place = true;
      return is_first;
    });
    uint64_t& all = coverage_of_[size];
    if (all == 0) all = judge::coverage_of(0, size, [](int64_t) { return true; });
    row.coverage_of_all = all;
  }

  void compare_values(const RecordedPiece& piece, const TensorView& local,
                      const GoldenTensor& golden, const judge::IndexPlan& plan,
                      judge::ResultRow& row) {
    judge::Comparison now{.task = {local, golden, plan, 1, exact_allowance(reference_, golden)}};
    const bool floating = is_floating(local.dtype());
    if (scattered_ && floating) {  // counts are exact
      const double eps = eps_of(local, golden);
      now.task.allowance += judge::scatter_allowance(golden, eps);
      now.unresolved = why_unresolved(golden, eps);
    }
    now.task.padding_is_zero =
        run_.is_file && golden.kind == ObservationKind::kLogprobs && golden.value.dim() == 2;
    const Source source = floating ? sources_.of(piece) : Source{};
    if (row.partial && !source.is_judged()) {
      widened_[golden.order] = {now.task.allowance, now.unresolved};
      now.task.allowance += source.allowance(golden.scale, phase_scale_of(reference_, golden));
      now.unresolved = source.reason;
    }
    if (piece.is_mean) now.share = mean_share(run_.mesh, piece);
    if (is_stepped_here(piece)) now.free_running = [&] { return free_running(piece, golden); };
    now.excuse = [&](judge::DiffTask& task, judge::DiffResult& result, judge::ResultRow& wrong) {
      return excuse(piece, source, task, result, wrong);
    };
    rows_[static_cast<size_t>(piece.rank)].compare(std::move(now), row);
  }

  static bool is_stepped_here(const RecordedPiece& piece) {
    return piece.step > 0 && is_stepped(piece.kind);
  }

  // Whether a wrong row may be right, because of what it is computed from. It is then unresolved.
  bool excuse(const RecordedPiece& piece, const Source& source, judge::DiffTask& task,
              judge::DiffResult& result, judge::ResultRow& row) {
    const bool knows_rule = task.added != nullptr;
    const MatrixVerdict& own = matrix_steps_.of(piece);
    if (own.kind == MatrixVerdict::Kind::kWrong) return false;
    if (own.kind == MatrixVerdict::Kind::kRight) {
      row.outcome = judge::Outcome::kUnresolved;
      row.reason = own.text;
      sources_.add_unresolved(piece);
      return true;
    }
    if (is_stepped_here(piece) && (!knows_rule || !source.is_judged())) {
      const double eps = eps_of(task.local, task.golden);
      judge::ResultRow explained = row;
      const bool may_be =
          own_steps_.explain(piece, task.golden, source, knows_rule, scattered_, eps, explained);
      if (may_be && knows_rule && !follows(piece, source, task)) return false;
      row = std::move(explained);
      if (may_be) sources_.add_unresolved(piece);
      return may_be;
    }
    if (source.is_judged()) return false;
    task.allowance += source.allowance(task.golden.scale, phase_scale_of(reference_, task.golden));
    result = judge::diff(task);
    if (result.bad_count > 0) return false;
    row.outcome = judge::Outcome::kUnresolved;
    row.reason = source.reason;
    return true;
  }

  // Whether the optimizer's rule makes such values of gradients as far from the golden's as
  // `source` lets them be.
  bool follows(const RecordedPiece& piece, const Source& source, const judge::DiffTask& task) {
    const auto wider = free_running(piece, task.golden, source);
    if (!wider) return true;
    judge::DiffTask again = task;
    again.added = &*wider;
    return judge::diff(again).bad_count == 0;
  }

  std::optional<judge::FreeRunningAllowance> free_running(const RecordedPiece& piece,
                                                          const GoldenTensor& golden,
                                                          const Source& source = {}) const {
    const Rule rule = rule_of(piece);
    if (!rule.is_known) return std::nullopt;
    CaseSpec spec = spec_;
    spec.optimizer = rule.optimizer;
    return judge::FreeRunningAllowance::of(
        spec, golden_, golden,
        run_.is_file ? judge::KnownGradients::kFirstStep : judge::KnownGradients::kEveryStep,
        rule.rates, judge::Members::kAll, [&](const GoldenTensor& gradient) {
          if (source.is_judged()) return 0.0;
          return source.allowance(gradient.scale, phase_scale_of(reference_, gradient));
        });
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

  void finish(size_t rank) {
    judge::RankReport& report = reports_[rank];
    report.pieces = rows_[rank].take_pieces();
    for (const GoldenTensor& tensor : golden_.tensors()) {
      if (seen_[rank].contains(tensor.order)) continue;
      report.unobserved.push_back({tensor.order, tensor.phase, tensor.step, tensor.kind,
                                   tensor.name, tensor.value.sizes()});
      if (run_.is_file || !is_demanded(tensor.kind))
        report.unobserved.back().excuse = judge::Excuse::kNotInFile;
    }
  }

  const RecordedRun& run_;
  const CaseSpec& spec_;
  const Reference& reference_;
  const GoldenRecord& golden_;
  bool scattered_;  // the repeats tell how much correct runs scatter
  std::map<CopyKey, std::vector<int64_t>> copies_;
  const WideCopies wide_;
  Sources sources_;
  OwnSteps own_steps_;
  MatrixSteps matrix_steps_;
  WidenedSums& widened_;
  std::map<int64_t, std::vector<bool>> held_;  // elements, by the golden's order
  std::map<int64_t, uint64_t> coverage_of_;    // of a whole tensor, by its number of elements
  std::set<std::string> names_;
  std::map<std::string, std::string> nearest_;  // of names that the reference lacks
  std::vector<judge::RankReport> reports_;
  std::vector<judge::RowJudge> rows_;  // by rank
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
      if (!reason.empty()) continue;
      row.outcome = judge::Outcome::kMatch;
      row.judged = row.count;
    }
  }
}

}  // namespace shardproof::sim::recorded
