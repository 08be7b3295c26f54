#include "sim/world/rank/case_options.h"

#include <limits>

#include "base/error.h"
#include "sim/world/rank/fsdp_options.h"

namespace shardproof::sim {
namespace {

BatchingOptions batching_options(const BatchingSpec& spec) {
  return {.kind = spec.kind == "packed"    ? BatchingKind::kPacked
                  : spec.kind == "dynamic" ? BatchingKind::kDynamic
                                           : BatchingKind::kFixed,
          .token_budget = spec.tokens,
          .algorithm = spec.algorithm == "balanced" ? PackAlgorithm::kBalanced
                                                    : PackAlgorithm::kFirstFitDecreasing,
          .length_round = spec.length_round};
}

ContextLayout context_layout_of(const std::string& name) {
  for (const ContextLayout layout : {ContextLayout::kZigzag, ContextLayout::kContiguous}) {
    if (name == context_layout_name(layout)) return layout;
  }
  SHARDPROOF_ASSERT(false, "no context layout '" + name + "'");
  return ContextLayout::kZigzag;
}

Rotation rotation_of(const std::string& name) {
  for (const Rotation rotation : {Rotation::kSendRecv, Rotation::kAllToAll, Rotation::kAllGather}) {
    if (name == rotation_name(rotation)) return rotation;
  }
  SHARDPROOF_ASSERT(false, "no rotation '" + name + "'");
  return Rotation::kSendRecv;
}

ScheduleKind schedule_kind_of(const std::string& name) {
  if (name == "ConstantLR") return ScheduleKind::kConstant;
  if (name == "LinearLR") return ScheduleKind::kLinear;
  if (name == "CosineAnnealingLR") return ScheduleKind::kCosine;
  SHARDPROOF_ASSERT(name == "LambdaLR", "no scheduler '" + name + "'");
  return ScheduleKind::kLambda;
}

ScheduleOptions schedule_options(const OptimizerSpec& spec) {
  ScheduleOptions options{.milestones = spec.milestones};
  for (const SchedulerSpec& scheduler : spec.schedulers) {
    const ScheduleKind kind = schedule_kind_of(scheduler.kind);
    const bool constant = kind == ScheduleKind::kConstant;
    options.stages.push_back({.kind = kind,
                              .start_factor = constant ? scheduler.factor : scheduler.start_factor,
                              .end_factor = scheduler.end_factor,
                              .total_iters = scheduler.total_iters,
                              .t_max = scheduler.t_max,
                              .eta_min = scheduler.eta_min,
                              .lambdas = scheduler.lr_lambda});
  }
  return options;
}

}  // namespace

TrainOptions train_options(const CaseSpec& spec) {
  TrainOptions options;
  options.loss = {.kind = spec.loss.kind == "nll"          ? LossKind::kNll
                          : spec.loss.kind == "preference" ? LossKind::kPreference
                                                           : LossKind::kClippedPolicyGradient,
                  .normalization = spec.loss.normalization == "sequence"
                                       ? LossNormalization::kSequence
                                       : LossNormalization::kToken,
                  .clip_eps = spec.loss.eps,
                  .kl_beta = spec.loss.beta};
  options.optimizer = {
      .kind = spec.optimizer.kind == "SGD" ? OptimizerKind::kSgd : OptimizerKind::kAdamW,
      .lr = spec.optimizer.lr,
      .beta1 = spec.optimizer.beta1,
      .beta2 = spec.optimizer.beta2,
      .eps = spec.optimizer.eps,
      .weight_decay = spec.optimizer.weight_decay,
      .momentum = spec.optimizer.momentum,
      .dampening = spec.optimizer.dampening,
      .nesterov = spec.optimizer.nesterov};
  options.schedule = schedule_options(spec.optimizer);
  options.temperature = spec.loss.temperature;
  options.max_norm = spec.optimizer.max_norm;
  options.micro_batch_size = spec.micro_batch_size;
  options.sequence_parallel = spec.parallel.sequence_parallel;
  options.batching = batching_options(spec.batching);
  options.data_parallel = fsdp_options(spec.parallel);
  options.checkpointed =
      spec.parallel.activation_checkpointing == "layer" ? CheckpointedRegions::kLayer
      : spec.parallel.activation_checkpointing == "mlp" ? CheckpointedRegions::kMlp
                                                        : CheckpointedRegions::kNone;
  options.norm = {.type = spec.optimizer.norm_type == "inf"
                              ? std::numeric_limits<double>::infinity()
                              : std::stod(spec.optimizer.norm_type),
                  .copies = spec.parallel.grad_norm_counts == "once" ? NormCopies::kOnce
                                                                     : NormCopies::kEachOfTp};
  options.context_layout = context_layout_of(spec.parallel.context_layout);
  options.loss_scale = {.enabled = spec.precision == Precision::kFloat16,
                        .init_scale = spec.loss_scale.init_scale,
                        .growth_factor = spec.loss_scale.growth_factor,
                        .backoff_factor = spec.loss_scale.backoff_factor,
                        .growth_interval = spec.loss_scale.growth_interval};
  return options;
}

TensorParallelOptions tensor_parallel_options(const ParallelSpec& spec) {
  return {.sequence_parallel = spec.sequence_parallel,
          .async_grad = spec.async_grad,
          .gather_buffer = spec.gather_buffer,
          .custom_plan = spec.custom_plan};
}

ContextParallelOptions context_parallel_options(const CaseSpec& spec) {
  return {.rotation = rotation_of(spec.parallel.context_rotation)};
}

bool root_deals_weights(const CaseSpec& spec) {
  return !spec.weights_folder.empty() && spec.parallel.mesh().world_size() > 1;
}

}  // namespace shardproof::sim
