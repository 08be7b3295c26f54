#include "sim/judge/probe/rank_recorder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <chrono>

#include "base/digest.h"
#include "base/elapsed.h"
#include "base/error.h"
#include "sim/case/names.h"
#include "sim/case/policy_stages.h"
#include "sim/case/record/reference_pieces.h"
#include "sim/case/record/sampled_rows.h"
#include "sim/judge/diff/index_plan.h"
#include "sim/judge/diff/result_row.h"
#include "sim/judge/diff/roundings.h"
#include "sim/judge/probe/stale_leaf.h"
#include "tensor/aten_view.h"

namespace shardproof::sim::judge {
namespace {

uint64_t combine(uint64_t seed, uint64_t value) { return mix_bits(seed * 31 + value); }

uint64_t text_hash(const std::string& text) { return digest_of(text.data(), text.size()); }

uint64_t plan_key(const Observation& observation, const std::vector<int64_t>& global_shape,
                  const std::vector<int64_t>& drawn) {
  uint64_t key = digest_of(global_shape.data(), global_shape.size() * sizeof(int64_t));
  key = combine(key, digest_of(drawn.data(), drawn.size() * sizeof(int64_t)));
  for (const Cut& cut : observation.layout.cuts()) {
    key = combine(key, static_cast<uint64_t>(cut.dim));
    key = combine(key, text_hash(cut.axis));
    key = combine(key, static_cast<uint64_t>(cut.kind));
    key = combine(key, digest_of(cut.blocks.data(), cut.blocks.size() * sizeof(int64_t)));
    key = combine(key, static_cast<uint64_t>(cut.padded_size));
    key = combine(key, static_cast<uint64_t>(cut.parts));
    for (const int64_t at : cut.coordinates) key = combine(key, static_cast<uint64_t>(at));
  }
  if (const at::Tensor& map = observation.token_map; map.defined()) {
    const at::Tensor tokens = map.contiguous();
    key = combine(key, digest_of(tokens.const_data_ptr(), tokens.numel() * tokens.element_size()));
    for (const int64_t size : map.sizes()) key = combine(key, static_cast<uint64_t>(size));
  }
  if (observation.part == Part::kPartial) {
    for (const std::string& axis : observation.partial_axes)
      key = combine(key, text_hash(axis) + 1);
  }
  return key;
}

// The coverage of [B, S] logprobs, without the positions that are zero by definition.
void cover_scored(const GoldenTensor& golden, const IndexPlan& plan, ResultRow& row) {
  const std::vector<int64_t> tails = zero_tails(golden);
  const int64_t columns = golden.value.size(1);
  const auto counts = [&](int64_t offset) {
    const int64_t column = offset % columns;
    return column > 0 && column < tails[static_cast<size_t>(offset / columns)];
  };
  row.covered = coverage_of(plan, counts);
  row.coverage_of_all = coverage_of(0, golden.value.numel(), counts);
}

// "1 0 model.norm.output": the step, microbatch and name of an observation.
std::string forward_key(const Observation& observation) {
  return fmt::format("{} {} {}", observation.step, observation.microbatch, observation.name);
}

bool is_scored_logprobs(const GoldenTensor& golden) {
  return golden.kind == ObservationKind::kLogprobs && golden.value.dim() == 2 &&
         golden.value.dtype() == Dtype::kFloat64;
}

void fill_coverage(const GoldenTensor& golden, const IndexPlan& plan, ResultRow& row) {
  if (is_scored_logprobs(golden)) {
    cover_scored(golden, plan, row);
  } else if (plan.tokens == 0) {  // the golden's rows also have places without a token
    row.covered = plan.covered;
    row.coverage_of_all = plan.coverage_of_all;
  }
}

bool has_members(const CaseSpec& spec) { return spec.precision != Precision::kFloat64; }

constexpr const char* kMaySkip =
    "correct runs of one device differ in whether an overflow skips the step";

std::string why_unresolved(const GoldenTensor& golden) {
  if (!std::isfinite(golden.scatter)) {
    return "some correct runs of one device overflow there, or skip the step, and others do not";
  }
  return fmt::format("correct runs of one device scatter over {:.2g} of its scale",
                     golden.scatter / golden.scale);
}

}  // namespace

RankRecorder::RankRecorder(const CaseSpec& spec, const Mesh& mesh, int64_t rank,
                           const GoldenRecord* golden, std::function<int64_t()> calls_so_far)
    : spec_(spec),
      mesh_(mesh),
      rank_(rank),
      golden_(golden),
      calls_so_far_(std::move(calls_so_far)),
      tolerance_(spec),
      tolerance_of_few_(spec, Members::kFew) {
  if (golden_) {
    rows_.emplace(spec_, *golden_, kAddendBytes / static_cast<size_t>(mesh.world_size()));
    census_.emplace(*golden_);
    routes_.emplace(*golden_);
    own_optimizer_.emplace(spec_, *golden_, mesh_, rank_);
    parted_.emplace(*golden_);
    if (spec_.precision != Precision::kFloat64) gradient_addends_.emplace(spec_, *golden_);
  }
  report_.rank = rank;
  if (is_model_workload(spec_.workload)) hold_everything();
}

bool RankRecorder::listens(Phase phase) const {
  if (!spec_.judged) return false;
  return phase == Phase::kForward || phase == Phase::kStep || spec_.record_activations;
}

const GoldenTensor* RankRecorder::golden_of(const Observation& observation, bool fed) const {
  const Phase phase = observation.phase == Phase::kRecompute ? Phase::kForward : observation.phase;
  return golden_->find(phase, observation.step,
                       fed ? observed_name(ObservationKind::kParameter,
                                           parameter_of(ObservationKind::kFed, observation.name))
                           : observation.name);
}

const IndexPlan& RankRecorder::plan_of(const Observation& observation, const GoldenTensor& golden) {
  const std::vector<int64_t> global_shape = full_shape(golden, golden.value.sizes());
  uint64_t key = plan_key(observation, global_shape, golden.rows);
  Mesh mesh = mesh_;
  if (!spec_.stages.empty()) {
    mesh = parallel_at(spec_, observation.step).mesh();
    key = combine(key, text_hash(mesh.describe()));
  }
  std::unique_ptr<IndexPlan>& plan = plans_[key];
  if (!plan) {
    const bool partial = observation.part == Part::kPartial;
    plan = std::make_unique<IndexPlan>(make_index_plan(
        global_shape, observation.layout, view_of(observation.token_map),
        partial ? observation.partial_axes : std::vector<std::string>(), mesh, rank_, golden.rows));
  }
  return *plan;
}

void RankRecorder::observe(const Observation& observation) {
  SHARDPROOF_ASSERT(observation.kind != ObservationKind::kUnknown,
                    "a rank observed '" + observation.name + "' without its kind");
  if (!listens(observation.phase) || is_left_out(spec_, observation)) return;
  const auto start = std::chrono::steady_clock::now();
  const at::NoGradGuard no_grad;
  const at::Tensor tensor = observation.tensor.detach().cpu().contiguous();
  if (observation.kind == ObservationKind::kInitial) {
    if (own_optimizer_)
      own_optimizer_->begin(parameter_of(observation.kind, observation.name), tensor);
    if (!golden_ || !golden_of(observation, /*fed=*/false)) return;
  }

  const TensorView local = view_of(tensor);
  ResultRow row(Outcome::kNotJudged);
  row.kind = observation.kind;
  row.name = observation.name;
  row.phase = observation.phase;
  row.step = observation.step;
  row.microbatch = observation.microbatch;
  row.rank = rank_;
  row.site = observation.site;
  row.partial = observation.part == Part::kPartial;
  if (row.partial) row.partial_axes = observation.partial_axes;
  row.dtype = dtype_name(local.dtype());
  row.digest = digest_of(local.bytes(), local.nbytes());
  if (calls_so_far_) row.calls_before = calls_so_far_();
  if (gradient_addends_) gradient_addends_->see(observation);
  judge(observation, local, row);
  const bool follows = own_optimizer_ && row.kind != ObservationKind::kInitial &&
                       !parted_->has_left(row.phase, row.step);
  const std::string own = follows ? own_optimizer_->see(observation, tensor) : "";
  if (!own.empty() && !row.is_wrong() && row.problem.empty()) {
    const std::string rounded = rounded_through(local, spec_.precision);
    row.problem = rounded.empty() ? own : own + "; " + rounded;
  }
  if (observation.leaf.defined() && !row.is_wrong() && row.problem.empty()) {
    row.problem = stale_leaf(observation.leaf.cpu(), tensor);
  }
  RowJudge::finish(row);
  if (row.phase == Phase::kForward) forward_digests_.emplace(forward_key(observation), row.digest);
  report_.rows.push_back(std::move(row));
  report_.compare_seconds += seconds_since(start);
}

void RankRecorder::judge(const Observation& observation, const TensorView& local, ResultRow& row) {
  if (!golden_) {
    row.replicas = observation.layout.replicas_of(
        spec_.stages.empty() ? mesh_ : parallel_at(spec_, observation.step).mesh(), rank_);
    row.count = local.numel();
    row.reason = "the rank had no golden";
    return;
  }
  const bool fed = observation.kind == ObservationKind::kFed;
  const GoldenTensor* golden = golden_of(observation, fed);
  if (!golden) {
    row.replicas = std::vector<int64_t>{rank_};
    if (const char* reason = why_in_doubt(row.phase, row.step)) {
      row.outcome = Outcome::kUnresolved;
      row.reason = reason;
      row.count = local.numel();
    } else {
      row.problem = "the golden has no tensor of this name";
    }
    return;
  }
  if (!fed) census_->see(observation, *golden);
  if (observation.kind == ObservationKind::kLogprobs) keep_samples(observation, *golden);
  const IndexPlan& plan = plan_of(observation, *golden);
  if (RowJudge::place(local, *golden, plan, row)) {
    routes_->see(observation, kept_rows(local, plan), *golden, plan);
    if (observation.name == "metric.dropped_routes") {
      routes_->see_dropped(static_cast<int64_t>(observation.tensor.item<double>()));
    }
    row.undrawn = plan.undrawn;
    row.padding = local.numel() - plan.count - plan.undrawn;
    if (observation.phase == Phase::kRecompute) {
      check_recompute(observation, row);
    } else {
      row.problem = not_given(*golden, plan);
      if (row.problem.empty()) compare(observation, local, *golden, plan, fed, row);
      release_pages(*golden);
    }
  }
  if (row.problem.empty() && spec_.precision == Precision::kFloat64 && is_floating(local.dtype()) &&
      local.dtype() != Dtype::kFloat64) {
    row.problem = std::string(row.dtype) + " tensor in a float64 run";
  }
  const bool is_of_tokens = observation.kind == ObservationKind::kLogprobs ||
                            observation.kind == ObservationKind::kScores;
  const bool is_narrow = local.dtype() == Dtype::kBFloat16 || local.dtype() == Dtype::kFloat16;
  if (row.problem.empty() && is_of_tokens && is_narrow && is_model_workload(spec_.workload)) {
    row.problem = std::string(row.dtype) + " logprobs, where float32 is due";
  }
}

void RankRecorder::compare(const Observation& observation, const TensorView& local,
                           const GoldenTensor& golden, const IndexPlan& plan, bool fed,
                           ResultRow& row) {
  if (parted_->has_left(row.phase, row.step)) {
    row.outcome = Outcome::kUnresolved;
    row.reason = PartedSteps::kReason;
    return;
  }
  const TensorView kept = kept_rows(local, plan);
  // What is right by few members is a match even where all would leave it unresolved, so that the
  // verdict does not depend on how many the golden has.
  if (has_members(spec_) && !row.partial) {
    ResultRow tried = row;
    compare(observation, local, kept, golden, plan, fed, Members::kFew, tried);
    if (tried.outcome == Outcome::kMatch && tried.problem.empty()) {
      row = std::move(tried);
      return;
    }
  }
  compare(observation, local, kept, golden, plan, fed, Members::kAll, row);
}

void RankRecorder::compare(const Observation& observation, const TensorView& local,
                           const TensorView& kept, const GoldenTensor& golden,
                           const IndexPlan& plan, bool fed, Members members, ResultRow& row) {
  const Tolerance& tolerance = members == Members::kFew ? tolerance_of_few_ : tolerance_;
  Comparison now{.task = {kept, golden, plan, observation.scale,
                          fed ? tolerance.fed_allowance(golden) : tolerance.allowance(golden)},
                 .is_fed = fed,
                 .is_tried = members == Members::kFew};
  now.task.padding_is_zero = is_scored_logprobs(golden);
  now.task.members = members;
  const double scatter = members == Members::kFew ? golden.few_scatter : golden.scatter;
  const bool differs = !std::isfinite(scatter);  // in which tensors correct runs have
  if (differs || !tolerance.resolves(golden)) now.unresolved = why_unresolved(golden);
  if (!fed && std::isfinite(now.task.allowance)) fill_coverage(golden, plan, row);
  if (!fed) {
    now.free_running = [&] {
      return FreeRunningAllowance::of(spec_, *golden_, golden, KnownGradients::kEveryStep, {},
                                      members);
    };
  }
  if (row.kind == ObservationKind::kSkipped && members == Members::kAll) {
    now.excuse = [&](DiffTask&, DiffResult&, ResultRow& skipped) {
      if (!parted_->leaves(skipped.step)) return false;
      skipped.outcome = Outcome::kUnresolved;
      skipped.reason = PartedSteps::kReason;
      return true;
    };
  }
  if (row.partial && has_members(spec_) && std::isfinite(golden.few_scatter) &&
      tolerance_of_few_.resolves(golden)) {
    now.allowance_of_few = tolerance_of_few_.allowance(golden);
  }
  now.problem_of_all = [&] { return problem_of_all(observation, golden, local); };
  rows_->compare(std::move(now), row);
}

// Errors of a low precision. `local` has all rows, of which the golden may have a sample.
std::string RankRecorder::problem_of_all(const Observation& observation, const GoldenTensor& golden,
                                         const TensorView& local) const {
  std::string problem;
  if (is_scored_logprobs(golden) || observation.kind == ObservationKind::kScores) {
    problem = rounded_through(local, spec_.precision);
  }
  if (observation.kind == ObservationKind::kGradient) {
    problem = rounded_through(local, spec_.precision, kFewestOfGradient);
    if (!problem.empty() && !gradient_addends_->are_several(golden)) problem.clear();
  }
  if (!problem.empty() || !norms_) return problem;
  return own_norm_problem(*norms_, observation, tensor_of(local));
}

void RankRecorder::keep_samples(const Observation& logprobs, const GoldenTensor& golden) {
  if (logprobs.step != 1 || !logprobs.token_map.defined() || golden.value.dim() != 2) return;
  auto& all = report_.microbatch_samples;
  const auto microbatch = static_cast<size_t>(logprobs.microbatch);
  if (all.size() <= microbatch) all.resize(microbatch + 1);
  std::set<int64_t> samples(all[microbatch].begin(), all[microbatch].end());
  const at::Tensor tokens = logprobs.token_map.contiguous();
  for (int64_t i = 0; i < tokens.numel(); ++i) {
    const int64_t token = tokens.const_data_ptr<int64_t>()[i];
    if (token >= 0) samples.insert(token / golden.value.size(1));
  }
  all[microbatch].assign(samples.begin(), samples.end());
}

void RankRecorder::check_recompute(const Observation& observation, ResultRow& row) {
  const auto forward = forward_digests_.find(forward_key(observation));
  if (forward == forward_digests_.end()) {
    row.problem = "recomputed, but there was no forward of this name";
  } else if (forward->second != row.digest) {
    row.problem = "the recomputed forward differs from the forward";
  } else {
    row.outcome = Outcome::kMatch;
  }
}

// Why this rank may have other tensors in the step than the golden; null: it may not.
const char* RankRecorder::why_in_doubt(Phase phase, int64_t step) const {
  if (parted_->has_left(phase, step)) return PartedSteps::kReason;
  if (phase != Phase::kStep) return nullptr;  // a skip begins behind the backward
  const GoldenTensor* skipped = golden_->find(Phase::kStep, step, "metric.skipped");
  return skipped != nullptr && skipped->scatter > 0 ? kMaySkip : nullptr;
}

void RankRecorder::leave_to_others(const std::vector<std::string>& tensors, int64_t first_step) {
  elsewhere_[first_step] = {tensors.begin(), tensors.end()};
}

// Never what this rank has observed in some of its microbatches.
bool RankRecorder::is_left_to_others(const Unobserved& tensor) const {
  if (!tensor.microbatches.empty()) return false;
  const auto after = elsewhere_.upper_bound(tensor.step);
  return after != elsewhere_.begin() && std::prev(after)->second.contains(tensor.name);
}

std::vector<Unobserved> RankRecorder::unobserved() const {
  if (!census_) return {};
  std::vector<Unobserved> missing = census_->unobserved();
  for (Unobserved& tensor : missing) {
    if (is_of_microbatch(tensor.phase, tensor.kind) && !spec_.record_activations) {
      tensor.excuse = Excuse::kNotRecorded;
    }
    if (why_in_doubt(tensor.phase, tensor.step)) tensor.excuse = Excuse::kUnresolved;
    if (is_left_to_others(tensor)) tensor.excuse = Excuse::kElsewhere;
  }
  return missing;
}

RankReport RankRecorder::finish() {
  const auto start = std::chrono::steady_clock::now();
  if (rows_) report_.pieces = rows_->take_pieces();
  report_.unobserved = unobserved();
  if (routes_) {
    if (nlohmann::json routes = routes_->take(); !routes.is_null()) {
      report_.metrics["routes"] = std::move(routes);
    }
  }
  if (golden_ != nullptr) {
    const auto scored = golden_->metadata().find(kScoredTokens);
    if (scored != golden_->metadata().end()) report_.scored_tokens = std::stoll(scored->second);
  }
  report_.compare_seconds += seconds_since(start);
  return std::move(report_);
}

}  // namespace shardproof::sim::judge
