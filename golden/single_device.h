// One case on one device: the model with its plain layers processes the whole batch at once and
// gives every value to a probe.
//
//   each step k = 1..steps (k = 0, and the forward phase alone, for workload logprobs):
//   forward   every slot's output in the order of the run, "logprobs" [B, S], "loss"
//   backward  every slot's input gradients in the order they arise
//   step      "grad.<parameter>" of trained ones before clipping, last layer first; "grad_norm";
//             "whole.<parameter>" of Muon's matrices; then per parameter
//             the optimizer's state ("exp_avg.", "exp_avg_sq.", "momentum_buffer.") and "param.";
//             then "metric.<name>"
//   Workload policy: policy_life.h.
#pragma once

#include <memory>
#include <vector>

#include "golden/perturbation.h"
#include "golden/route_choices.h"
#include "model/batch.h"
#include "model/config.h"
#include "model/weights.h"
#include "observe/probe.h"
#include "sim/case/case_spec.h"

namespace shardproof::golden {

struct CaseData {
  ModelConfig config;
  std::shared_ptr<const WeightMap> weights;
  Batch batch;
};

struct RunOptions {
  at::ScalarType dtype;  // a dtype of precision.h
  // Whether a gradient overflowed in each training step of a float16 case. A float16 run writes it;
  // a float64 run, which never overflows, reads it. null: no step is skipped.
  std::shared_ptr<std::vector<bool>> overflows = std::make_shared<std::vector<bool>>();
  const Perturbation* perturbation = nullptr;  // null: no perturbation
  // Gets the steps that sums of parts skip otherwise (sim/case/record/golden_record.h). null: they
  // are not looked for.
  std::shared_ptr<std::vector<int64_t>> parted_skips = nullptr;
  RouteChoices* routes = nullptr;  // of a model with experts in a lower precision; null: live ones
};

// Throws Error for a config, weights or a batch that cannot be read.
CaseData load_case_data(const sim::CaseSpec& spec);

// Runs spec.workload. Throws Error(kBadInput) for an unknown workload, loss or optimizer, and for
// fewer than one training step.
void run_single_device(const sim::CaseSpec& spec, const CaseData& data, const RunOptions& options,
                       Probe& probe);

}  // namespace shardproof::golden
