// The probe of one rank: compares each observation with the golden at once and keeps the result.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "observe/probe.h"
#include "sim/case/case_spec.h"
#include "sim/case/record/golden_record.h"
#include "sim/judge/diff/index_plan.h"
#include "sim/judge/diff/result_row.h"
#include "sim/judge/diff/tolerance.h"
#include "sim/judge/evidence/row_judge.h"
#include "sim/judge/probe/census.h"
#include "sim/judge/probe/gradient_addends.h"
#include "sim/judge/probe/own_norm.h"
#include "sim/judge/probe/own_optimizer.h"
#include "sim/judge/probe/parted_steps.h"
#include "sim/judge/probe/router_figures.h"

namespace shardproof::sim::judge {

class RankRecorder final : public Probe {
 public:
  // Addends travel whole, so that threads, processes of one host and processes of several hosts
  // work the same way: the control process adds them up in rank order and can explain a wrong sum
  // from all of its parts. An addend without room is kNotJudged.
  static constexpr size_t kAddendBytes = size_t{1} << 30;  // of all ranks together

  // When `golden` is null the recorder takes only digests, and every row is kNotJudged.
  // `calls_so_far` returns the number of collective calls of this rank; it may be empty. `golden`
  // must outlive the recorder.
  RankRecorder(const CaseSpec& spec, const Mesh& mesh, int64_t rank, const GoldenRecord* golden,
               std::function<int64_t()> calls_so_far);

  // Judges the outputs of norms below float64 by their inputs too (own_norm.h).
  void judge_norms(const NormRule& rule) { norms_ = rule; }
  bool listens(Phase phase) const override;
  // Reads the tensor during the call and does not keep it. May be called inside a backward pass.
  // Compares "fed.param.<name>" with the golden's "param.<name>" at 1e-12 of its scale. From
  // "initial.<parameter>" it follows the rank's own optimizer; it is judged where the golden has
  // it, in stages.
  void observe(const Observation& observation) override;
  // From here on, what this rank does not observe is missing.
  void hold_everything() { report_.holds = Holds::kEverything; }
  // Tensors that this rank's model leaves to other ranks from `first_step` on, in place of those
  // of an earlier call: it need not observe them.
  void leave_to_others(const std::vector<std::string>& tensors, int64_t first_step);
  // Returns the rows in the order observed, failing pieces and the unobserved tensors. Call it
  // once.
  RankReport finish();

 private:
  const GoldenTensor* golden_of(const Observation& observation, bool fed) const;
  const IndexPlan& plan_of(const Observation& observation, const GoldenTensor& golden);
  void judge(const Observation& observation, const TensorView& local, ResultRow& row);
  void compare(const Observation& observation, const TensorView& local, const GoldenTensor& golden,
               const IndexPlan& plan, bool fed, ResultRow& row);
  void compare(const Observation& observation, const TensorView& local, const TensorView& kept,
               const GoldenTensor& golden, const IndexPlan& plan, bool fed, Members members,
               ResultRow& row);
  std::string problem_of_all(const Observation& observation, const GoldenTensor& golden,
                             const TensorView& local) const;
  void keep_samples(const Observation& logprobs, const GoldenTensor& golden);
  void check_recompute(const Observation& observation, ResultRow& row);
  const char* why_in_doubt(Phase phase, int64_t step) const;
  bool is_left_to_others(const Unobserved& tensor) const;
  std::vector<Unobserved> unobserved() const;

  CaseSpec spec_;
  Mesh mesh_;
  int64_t rank_;
  const GoldenRecord* golden_;
  std::function<int64_t()> calls_so_far_;
  Tolerance tolerance_, tolerance_of_few_;
  std::optional<RowJudge> rows_;
  std::optional<OwnOptimizer> own_optimizer_;
  std::optional<GradientAddends> gradient_addends_;
  std::optional<NormRule> norms_;
  std::optional<PartedSteps> parted_;
  std::unordered_map<uint64_t, std::unique_ptr<IndexPlan>> plans_;
  std::optional<Census> census_;
  std::optional<RouterFigures> routes_;
  std::map<int64_t, std::set<std::string>> elsewhere_;  // by the first step of each list
  RankReport report_;
  std::unordered_map<std::string, uint64_t> forward_digests_;  // that recomputations must equal
};

}  // namespace shardproof::sim::judge
