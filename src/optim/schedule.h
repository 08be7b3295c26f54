// Learning rates over steps, equal to the bit to those of torch.optim.lr_scheduler. No LibTorch
// here.
//
// PyTorch's schedulers multiply the current rate ("chainable"): each step's rate follows from the
// one before it, and a scheduler that takes over at a milestone begins from the initial rate. This
// code makes the same operations in the same order.
//
//   ConstantLR          initial * factor until total_iters, then initial
//   LinearLR            from initial * start_factor to initial * end_factor in total_iters steps
//   CosineAnnealingLR   from initial down to eta_min in t_max steps, and up again in as many
//   LambdaLR            initial * lambdas[step]; the last one continues
//   several             SequentialLR: the next one takes over at each milestone
//
// Source: torch 2.11, torch/optim/lr_scheduler.py; NeMo-RL dtensor_policy_worker.py
#pragma once

#include <cstdint>
#include <vector>

#include "base/training_choices.h"

namespace shardproof {

struct ScheduleStage {
  ScheduleKind kind = ScheduleKind::kLambda;
  double start_factor = 1.0 / 3;        // linear; the factor of a constant stage
  double end_factor = 1.0;              // linear
  int64_t total_iters = 5;              // constant, linear
  int64_t t_max = 1;                    // cosine
  double eta_min = 0.0;                 // cosine
  std::vector<double> lambdas = {1.0};  // lambda
};

struct ScheduleOptions {
  std::vector<ScheduleStage> stages = {};  // empty: the rate is constant
  std::vector<int64_t> milestones = {};    // one fewer than stages, not decreasing
};

class LrSchedule {
 public:
  // Asserts what the reader of a configuration refuses: one milestone between two stages, positive
  // factors and step counts.
  LrSchedule(ScheduleOptions options, double initial_lr);

  // The rate after `steps` scheduler steps, of optimizer step `steps` + 1. Cheap if `steps` grows.
  double after(int64_t steps);

 private:
  void start();
  void step();
  double next_rate(const ScheduleStage& stage, int64_t epoch) const;  // from rate_
  double closed_form(const ScheduleStage& stage) const;               // at epoch 0

  ScheduleOptions options_;
  double initial_;
  double rate_ = 0;
  int64_t steps_ = 0;
  std::vector<int64_t> epochs_;  // per stage
};

}  // namespace shardproof
