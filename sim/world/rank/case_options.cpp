#include "sim/world/rank/case_options.h"

#include <limits>

#include "base/error.h"
#include "parallel/tp/broadcast_batch.h"

namespace shardproof::sim::world {
namespace {

ScheduleOptions schedule_options(const OptimizerSpec& spec) {
  ScheduleOptions options{.milestones = spec.milestones};
  for (const SchedulerSpec& scheduler : spec.schedulers) {
    const bool constant = scheduler.kind == ScheduleKind::kConstant;
    options.stages.push_back({.kind = scheduler.kind,
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
  options.loss = spec.loss;
  options.optimizer = spec.optimizer;
  options.schedule = schedule_options(spec.optimizer);
  options.temperature = spec.loss.temperature;
  options.max_norm = spec.optimizer.max_norm;
  options.micro_batch_size = spec.micro_batch_size;
  options.batching = spec.batching;
  options.checkpointed = spec.parallel.activation_checkpointing;
  options.discarded = spec.parallel.discarded_outputs;
  options.norm = {.type = spec.optimizer.norm_type == "inf"
                              ? std::numeric_limits<double>::infinity()
                              : std::stod(spec.optimizer.norm_type),
                  .copies = spec.parallel.grad_norm_counts};
  options.side_losses = side_losses_of(spec);
  options.selection_bias = spec.selection_bias;
  options.capacity = spec.capacity;
  options.replays_routes = spec.replays_routes;
  options.loss_scale = spec.loss_scale;
  options.loss_scale.enabled = spec.precision == Precision::kFloat16;
  return options;
}

TensorParallelOptions tensor_parallel_options(const ParallelSpec& spec) {
  return {.sequence_parallel = spec.sequence_parallel,
          .async_grad = spec.async_grad,
          .gather_buffer = spec.gather_buffer,
          .deferred_wgrad = spec.deferred_wgrad,
          .bias = spec.bias,
          .spread_checkpoints = spec.spread_checkpoints,
          .custom_plan = spec.custom_plan};
}

PipelineOptions pipeline_options(const PipelineSpec& spec) {
  return {.schedule = spec.schedule,
          .chunks = spec.chunks,
          .group = spec.group,
          .shapes = spec.shapes,
          .split = {.first_layers = spec.first_layers,
                    .last_layers = spec.last_layers,
                    .count_embedding = spec.count_embedding,
                    .count_head = spec.count_head,
                    .layout = spec.layout}};
}

ParallelOptions parallel_options(const ParallelSpec& spec) {
  return {.tensor = tensor_parallel_options(spec),
          .experts = {.dispatch = spec.expert_dispatch, .rows_multiple = spec.expert_rows_multiple},
          .context = {.rotation = spec.context_rotation, .layout = spec.context_layout},
          .pipeline = pipeline_options(spec.pp_options),
          .data = fsdp_options(spec)};
}

ParallelOptions parallel_options(const CaseSpec& spec) {
  ParallelOptions options = parallel_options(spec.parallel);
  options.tensor.fused_norms = spec.fused_norm;
  if (spec.init == WeightInit::kOwnStream) options.tensor.own_stream_seed = spec.seed;
  return options;
}

Batch batch_as_read(const CaseSpec& spec, const Batch& own, const RankSetup& setup) {
  if (spec.data.read_by == BatchReader::kAll) return own;
  Communicator& tp = setup.comm.along("tp");
  return broadcast_batch(tp.rank() == 0 ? own : Batch(), setup.device, tp);
}

bool root_deals_weights(const CaseSpec& spec) {
  return !spec.weights_folder.empty() && spec.parallel.mesh().world_size() > 1;
}

FsdpOptions fsdp_options(const ParallelSpec& spec) {
  return {.kind = spec.data_parallel,
          .replicate_size = spec.fsdp.replicate_size,
          .reshard_after_forward = spec.fsdp.reshard_after_forward,
          .prefetch = spec.fsdp.prefetch,
          .reduce_each_microbatch = spec.fsdp.reduce_each_microbatch,
          .cpu_offload = spec.fsdp.cpu_offload,
          .gradients = spec.gradients};
}

ShardAxes shard_axes_of(const ParallelSpec& spec) {
  std::vector<std::string> token_axes;
  for (const auto& axis : kTrainingAxes) {
    if (axis.share != Share::kModel) token_axes.emplace_back(axis.name);
  }
  return shard_axes(spec.mesh(), token_axes, fsdp_options(spec));
}

}  // namespace shardproof::sim::world
