#include "sim/judge/evidence/row_judge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/case/policy_stages.h"
#include "sim/case/record/sampled_rows.h"
#include "sim/judge/diff/roundings.h"
#include "sim/judge/evidence/look.h"

namespace shardproof::sim::judge {
namespace {

std::string problem_of_form(const TensorView& local, const GoldenTensor& golden,
                            const IndexPlan& plan) {
  if (!plan.problem.empty()) return plan.problem;
  const std::vector<int64_t> shape = full_shape(golden, golden.value.sizes());
  if (plan.global_shape != shape) {
    return fmt::format("its global shape is [{}], the golden's is [{}]",
                       fmt::join(plan.global_shape, ", "), fmt::join(shape, ", "));
  }
  if (local.sizes() != plan.local_shape) {
    return fmt::format("wrong shape: [{}], where {} of the golden's [{}] is [{}]",
                       fmt::join(local.sizes(), ", "), plan.layout.empty() ? "R" : plan.layout,
                       fmt::join(shape, ", "), fmt::join(plan.local_shape, ", "));
  }
  if (is_floating(local.dtype()) != is_floating(golden.value.dtype())) {
    return fmt::format("wrong dtype: {}, the golden is {}", dtype_name(local.dtype()),
                       dtype_name(golden.value.dtype()));
  }
  return "";
}

}  // namespace

RowJudge::RowJudge(const CaseSpec& spec, const GoldenRecord& golden, size_t addend_bytes)
    : spec_(spec), golden_(golden), addend_bytes_(addend_bytes), room_(addend_bytes) {}

bool RowJudge::place(const TensorView& local, const GoldenTensor& golden, const IndexPlan& plan,
                     ResultRow& row) {
  row.order = golden.order;
  row.golden_scale = golden.scale;
  row.layout = plan.layout;
  row.replicas = plan.replicas;
  row.tokens = plan.tokens;
  row.compares_replicas = !plan.only_padding;
  row.count = plan.count;
  row.global_shape = plan.global_shape;
  row.local_shape = local.sizes();
  row.problem = problem_of_form(local, golden, plan);
  return row.problem.empty();
}

void RowJudge::compare(Comparison comparison, ResultRow& row) {
  DiffTask& task = comparison.task;
  row.reason = std::move(comparison.unresolved);
  if (!std::isfinite(task.allowance)) {
    row.outcome = row.reason.empty() ? Outcome::kNotJudged : Outcome::kUnresolved;
    if (row.reason.empty()) row.reason = fmt::format("its allowance is {}", task.allowance);
    return;
  }
  if (row.partial) return keep_addend(comparison, row);
  DiffResult result = diff(task);
  std::optional<FreeRunningAllowance> added;
  if (result.bad_count > 0 && comparison.free_running) added = comparison.free_running();
  if (added) {
    task.added = &*added;
    result = diff(task);
  }
  if (result.bad_count > 0 && comparison.excuse && comparison.excuse(task, result, row)) return;
  take_result(result, task.plan, row);
  if (row.outcome == Outcome::kMatch && !comparison.is_fed) check_all(comparison, row);
  if (row.outcome != Outcome::kMismatch || comparison.is_tried) return;
  row.rounding_only = spec_.precision != Precision::kFloat64;
  if (!failing_.wants(golden_position(row.step, row.phase, row.order))) return;
  row.evidence = look_closer(task, golden_, spec_.precision);
  failing_.keep(make_piece(row, task));
}

// Finds errors in a low precision that no single element shows, since each is within its allowance.
// An optimizer's step turns roundings into errors that many elements share and that do not cancel.
void RowJudge::check_all(const Comparison& comparison, ResultRow& row) const {
  const DiffTask& task = comparison.task;
  if (spec_.precision == Precision::kFloat64 || !is_floating(task.local.dtype())) return;
  if (comparison.problem_of_all) row.problem = comparison.problem_of_all();
  if (row.problem.empty() && !is_stepped(row.kind)) {
    FactorCheck squares = check_squares(task, spec_.precision);
    row.worst_ratio = std::max(row.worst_ratio, squares.used);
    row.problem = std::move(squares.problem);
  }
  const bool follows_a_step = steps_behind(spec_, row.step).size() > 1 || is_stepped(row.kind);
  if (!row.problem.empty() || follows_a_step) return;
  FactorCheck factor = check_factor(task, spec_.precision);
  row.worst_ratio = std::max(row.worst_ratio, factor.used);
  row.problem = std::move(factor.problem);
}

void RowJudge::keep_addend(const Comparison& comparison, ResultRow& row) {
  const size_t bytes = 2 * sizeof(double) * static_cast<size_t>(comparison.task.local.numel());
  if (bytes > room_) {
    row.reason = fmt::format(
        "its addends do not fit: {} more bytes on rank {}, where {} of the {} that each rank has "
        "are left",
        bytes, row.rank, room_, addend_bytes_);
    return;
  }
  room_ -= bytes;
  row.rounding_only = spec_.precision != Precision::kFloat64;
  row.outcome = Outcome::kAddend;
  addends_.push_back(make_piece(row, comparison.task));
  addends_.back().allowance_of_few = comparison.allowance_of_few;
  for (double& value : addends_.back().actual) value *= comparison.share;
}

void RowJudge::finish(ResultRow& row) {
  if (!row.problem.empty()) row.outcome = Outcome::kMismatch;
  if (row.outcome == Outcome::kMatch || row.is_wrong()) row.judged = row.count;
}

std::vector<Piece> RowJudge::take_pieces() {
  std::vector<Piece> pieces = failing_.take();
  std::move(addends_.begin(), addends_.end(), std::back_inserter(pieces));
  return pieces;
}

}  // namespace shardproof::sim::judge
