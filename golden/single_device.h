// One case on one device: the model with its plain layers, the whole batch at once, every value
// told to a probe.
//
//   each step k = 1..steps (k = 0, and the forward phase alone, for workload logprobs):
//   forward   every slot's output in the order of the run, "logprobs" [B, S], "loss"
//   backward  every slot's input gradients in the order they arise
//   step      "grad.<parameter>" before clipping, last layer first; "grad_norm"; then per parameter
//             the optimizer's state ("exp_avg.", "exp_avg_sq.", "momentum_buffer.") and "param.";
//             then "metric.<name>"
//   Workload policy: policy_life.h.
#pragma once

#include <memory>
#include <vector>

#include "golden/perturbation.h"
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

// How one run of the case computes.
struct RunOptions {
  at::ScalarType dtype;  // precision.h
  // Of a float16 case's training steps in order, whether a gradient overflowed: a float16 run finds
  // it and leaves it here, a float64 run, where nothing overflows, takes it over.
  std::shared_ptr<std::vector<bool>> overflows = std::make_shared<std::vector<bool>>();
  const Perturbation* perturbation = nullptr;  // null: the run as it is
};

// Throws Error: a config, weights or batch that cannot be read.
CaseData load_case_data(const sim::CaseSpec& spec);

// Runs spec.workload. Throws Error(kBadInput): an unknown workload, loss or optimizer, fewer than
// one training step.
void run_single_device(const sim::CaseSpec& spec, const CaseData& data, const RunOptions& options,
                       Probe& probe);

}  // namespace shardproof::golden
