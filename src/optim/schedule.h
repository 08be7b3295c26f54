// Learning rates over steps, as torch.optim.lr_scheduler gives them, to the bit. No LibTorch here.
//
// PyTorch's schedulers multiply the rate that they find ("chainable"): each step's rate follows
// from the one before it, and a scheduler that takes over at a milestone begins from the initial
// rate. So do these: the same operations in the same order.
//
//   ConstantLR          initial * factor until total_iters, then initial
//   LinearLR            from initial * start_factor to initial * end_factor in total_iters steps
//   CosineAnnealingLR   from initial down to eta_min in t_max steps, and up again in as many
//   LambdaLR            initial * lambdas[step]; the last one stays
//   several             SequentialLR: the next one takes over at each milestone
//
// Source: torch 2.11, torch/optim/lr_scheduler.py; NeMo-RL dtensor_policy_worker.py
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardproof {

enum class ScheduleKind { kConstant, kLinear, kCosine, kLambda };

struct ScheduleStage {
  ScheduleKind kind = ScheduleKind::kLambda;
  double start_factor = 1.0 / 3;        // linear; of a constant one its factor
  double end_factor = 1.0;              // linear
  int64_t total_iters = 5;              // constant, linear
  int64_t t_max = 1;                    // cosine
  double eta_min = 0.0;                 // cosine
  std::vector<double> lambdas = {1.0};  // lambda
};

struct ScheduleOptions {
  std::vector<ScheduleStage> stages = {};  // none: the rate stays
  std::vector<int64_t> milestones = {};    // one fewer than stages, not decreasing
};

class LrSchedule {
 public:
  // Asserts what the reader of a configuration refuses: as many milestones as there are changes,
  // positive factors and step counts.
  LrSchedule(ScheduleOptions options, double initial_lr);

  // The rate after `steps` scheduler steps: of the (steps + 1)-th optimizer step. Cheap when asked
  // for steps that do not go back.
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
  std::vector<int64_t> epochs_;  // of each stage
};

}  // namespace shardproof
