// The probe of one rank: compares what it hears with the golden at once and keeps only the
// judgement.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "observe/probe.h"
#include "sim/case/case_spec.h"
#include "sim/case/record/golden_record.h"
#include "sim/judge/diff/index_plan.h"
#include "sim/judge/diff/own_optimizer.h"
#include "sim/judge/diff/result_row.h"
#include "sim/judge/diff/roundings.h"
#include "sim/judge/diff/tensor_diff.h"
#include "sim/judge/diff/tolerance.h"
#include "sim/judge/evidence/failing_pieces.h"

namespace shardproof::sim {

class RankRecorder final : public Probe {
 public:
  // Addends travel whole: that way is the same for ranks that are threads, processes of one host
  // and processes of several, the control process adds them up in the order of the ranks, and what
  // explains a wrong sum has every part of it. One that finds no room is kNotJudged.
  static constexpr size_t kAddendBytes = size_t{1} << 30;  // of all ranks together

  // `golden` null: digests only, and every row is kNotJudged. `calls_so_far`: collective calls of
  // this rank, may be empty. `golden` must outlive the recorder.
  RankRecorder(const CaseSpec& spec, const Mesh& mesh, int64_t rank, const GoldenRecord* golden,
               std::function<int64_t()> calls_so_far);

  bool listens(Phase phase) const override;
  // The tensor is read during the call and not kept. May be called inside a backward pass.
  // "fed.param.<name>" is compared with the golden's "param.<name>" at 1e-12 of its scale.
  // "initial.<parameter>" is not judged: the rank's own optimizer is followed from there.
  void observe(const Observation& observation) override;
  // Rows in the order observed, failing pieces, what was never observed. Once.
  RankReport finish();

 private:
  bool filtered(const Observation& observation) const;
  const GoldenTensor* golden_of(const Observation& observation, bool fed) const;
  const IndexPlan& plan_of(const Observation& observation,
                           const std::vector<int64_t>& global_shape);
  void judge(const Observation& observation, const at::Tensor& local, ResultRow& row);
  void compare(const Observation& observation, const at::Tensor& local, const GoldenTensor& golden,
               const IndexPlan& plan, bool fed, ResultRow& row);
  void check_roundings(const Observation& observation, const at::Tensor& local,
                       const DiffTask& task, ResultRow& row) const;
  void check_recompute(const Observation& observation, ResultRow& row);
  void keep_addend(const IndexPlan& plan, const DiffTask& task, ResultRow& row);
  bool may_skip(int64_t step) const;
  std::vector<Unobserved> unobserved() const;

  CaseSpec spec_;
  Mesh mesh_;
  int64_t rank_;
  const GoldenRecord* golden_;
  std::function<int64_t()> calls_so_far_;
  Tolerance tolerance_;
  std::optional<OwnOptimizer> own_optimizer_;
  std::optional<GradientAddends> gradient_addends_;
  std::unordered_map<uint64_t, std::unique_ptr<IndexPlan>> plans_;
  std::vector<bool> observed_;  // by golden order
  RankReport report_;
  std::unordered_map<std::string, uint64_t> forward_digests_;  // what a recomputation must equal
  FailingPieces failing_;
  std::vector<Piece> addends_;
  size_t addend_room_;  // bytes that are left for addends
};

}  // namespace shardproof::sim
