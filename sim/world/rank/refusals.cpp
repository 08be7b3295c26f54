#include "sim/world/rank/refusals.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/count_of.h"
#include "base/error.h"
#include "model/decoder.h"
#include "model/no_experts.h"
#include "model/weights.h"
#include "parallel/data/style.h"
#include "parallel/pp/style.h"
#include "sim/world/rank/case_options.h"

namespace shardproof::sim::world {
namespace {

// The samples of an optimizer step, and the mesh over which they are distributed.
struct TrainedBatch {
  int64_t samples, micro_batch_size, shares;
};

[[noreturn]] void refuse(std::string what, std::string fix) {
  throw Error({.kind = ErrorKind::kRefused, .what = std::move(what), .fix = std::move(fix)});
}

int64_t shares_of(const ParallelSpec& parallel) { return parallel.ranks(Share::kSamples); }

// "data_parallel_size": the keys of the axes that samples are dealt over.
std::string keys_of_shares() {
  std::string keys;
  for (const TrainingAxis& axis : kTrainingAxes) {
    if (axis.share == Share::kSamples) keys += (keys.empty() ? "" : " * ") + std::string(axis.key);
  }
  return keys;
}

std::vector<TrainedBatch> trained_batches(const CaseSpec& spec, int64_t samples) {
  if (spec.is(ModelWorkload::kTrain))
    return {{samples, spec.micro_batch_size, shares_of(spec.parallel)}};
  std::vector<TrainedBatch> batches;
  for (const StageSpec& stage : spec.stages) {
    if (stage.kind != StageKind::kTrain) continue;
    batches.push_back({stage.global_batch_size, stage.micro_batch_size, shares_of(stage.parallel)});
  }
  return batches;
}

void refuse_parted_pairs(const CaseSpec& spec, const TrainedBatch& batch) {
  if (batch.samples % 2 != 0) {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = fmt::format("{} samples do not come in pairs, as loss preference needs",
                                     batch.samples),
                 .fix = "give each chosen sample the rejected one behind it"});
  }
  if (spec.batching.kind != BatchingKind::kFixed) {
    refuse(fmt::format("loss preference compares neighbouring samples, which {} batching parts",
                       spec.batching.kind),
           "train it with run.train_micro_batch_size");
  }
  if (batch.micro_batch_size % 2 != 0) {
    refuse(fmt::format("train_micro_batch_size={} parts a chosen sample from its rejected one",
                       batch.micro_batch_size),
           "choose an even number");
  }
}

// Throws the errors that the styles would throw when they are applied.
void refuse_unfit_model(const ParallelSpec& parallel, const ModelConfig& config) {
  Decoder model(config, weights_to_come(config));
  make_styles(parallel_options(parallel)).place(model, parallel.mesh());
}

// A layer's gradients are reduced when its backward ends, before the last backward.
void refuse_deferral_of_shards(const ParallelSpec& parallel) {
  if (parallel.deferred_wgrad == 0) return;
  const std::string shard = shard_axes_of(parallel).shard;
  if (shard.empty()) return;
  refuse(fmt::format("parallel.tp.deferred_wgrad leaves gradients to the end of a step, but those "
                     "of parameters that {} ranks shard are reduced layer by layer",
                     parallel.mesh().size(shard)),
         "set parallel.data_parallel: replicate, or parallel.tp.deferred_wgrad: 0");
}

// The store of a trainer refuses it too, but ranks that only take weights have none.
void refuse_main_gradients(const CaseSpec& spec, const ParallelSpec& parallel) {
  check_main_gradients(fsdp_options(parallel), shard_axes_of(parallel), parallel.mesh(),
                       dtype_of_precision(name_of(spec.precision)));
}

// Its ranks choose the experts and deal the samples as their own layout does.
void refuse_reference_of_experts(const CaseSpec& spec) {
  const SideLossOptions losses = side_losses_of(spec);
  if (spec.precision != Precision::kFloat64) {
    refuse(
        fmt::format("the ranks of a reference choose other experts in {} than those of the case, "
                    "as roundings decide",
                    spec.precision),
        "set precision: float64");
  }
  if (losses.any() && losses.groups != LossGroups::kSequence) {
    refuse(fmt::format("run.experts.groups is {}, and another layout has other microbatches",
                       losses.groups),
           "set run.experts.groups: sequence, or leave the reference out");
  }
  if (spec.capacity.factor == 0 || spec.capacity.scope == CapacityScope::kSequence) return;
  refuse("run.experts.capacity.scope is rank, and another layout has other tokens on a rank",
         "set run.experts.capacity.scope: sequence, or leave the reference out");
}

void refuse_beside_experts(const CaseSpec& spec, const ModelConfig& config) {
  const ParallelSpec& parallel = spec.parallel;
  if (!config.has_experts()) return;
  if (spec.reference.is_set()) refuse_reference_of_experts(spec);
  if (parallel.grad_norm_counts == NormCopies::kOnce) return;
  refuse(
      "run.grad_norm.counts is each_of_tp, which counts copies, but ranks of tp may hold other "
      "experts",
      "leave it at once");
}

// Gate and up are not rows of their own there.
void refuse_parted_matrices(const CaseSpec& spec, const ModelConfig& config) {
  if (spec.optimizer.kind != OptimizerKind::kMuon || !config.expert_form().columns_in_turn) return;
  refuse(fmt::format("Muon makes gate and up orthogonal alone, but experts of family {} join them "
                     "column by column",
                     config.traits().name),
         "choose another optimizer, or another family");
}

// Ranks take the experts of each token from the golden.
void refuse_narrow_experts(const CaseSpec& spec, const ModelConfig& config) {
  if (!config.has_experts() || spec.precision == Precision::kFloat64) return;
  const auto refuse_beside = [&](const std::string& what, const char* fix) {
    refuse(fmt::format("a model with experts in {}, where ranks choose the experts that one "
                       "device chose, does not run with {}",
                       spec.precision, what),
           std::string(fix) + ", or precision: float64");
  };
  if (spec.is(ModelWorkload::kPolicy)) {
    refuse_beside("the stages of a policy", "set workload: train or logprobs");
  }
  if (spec.judged && (!spec.record_activations || spec.sample_rows > 0)) {
    refuse_beside("a golden that keeps not all activations",
                  "leave out record_activations and sample_rows");
  }
  if (spec.selection_bias.rate != 0) {
    refuse_beside("a selection bias", "leave out run.experts.bias");
  }
  if (spec.capacity.factor != 0 && spec.capacity.policy == DropPolicy::kProbs) {
    refuse_beside("run.experts.capacity.policy: probs, which compares weights",
                  "set policy: position");
  }
}

void refuse_training_of_routers(const CaseSpec& spec, const ModelConfig& config) {
  const bool limits = spec.capacity.factor != 0, moves = spec.selection_bias.rate != 0;
  if (!side_losses_of(spec).any() && !limits && !moves && !spec.replays_routes) return;
  if (!config.has_experts()) {
    const NoExperts no = no_experts(config);
    refuse(fmt::format("run.experts trains routers, which {} does not have", no.who),
           "leave it out, or " + no.fix);
  }
  if (spec.is(ModelWorkload::kLogprobs)) {
    refuse("run.experts acts on steps of training, which workload logprobs does not make",
           "leave it out, or use workload: train");
  }
  if (spec.replays_routes && !spec.is(ModelWorkload::kPolicy)) {
    refuse(
        "run.experts.replay trains on the routes of a stage score, which workload train does "
        "not have",
        "use workload: policy");
  }
  if (spec.replays_routes && limits) {
    refuse("run.experts.replay and run.experts.capacity both decide which experts a token gets",
           "leave out one of them");
  }
  if (!limits || spec.capacity.scope == CapacityScope::kSequence) return;
  if (spec.is(ModelWorkload::kPolicy) || spec.batching.kind != BatchingKind::kFixed) {
    refuse(
        "run.experts.capacity.scope is rank, but one device knows the tokens of a rank's "
        "microbatch in workload train with fixed batching alone",
        "set run.experts.capacity.scope: sequence");
  }
}

void refuse_side_losses(const CaseSpec& spec) {
  const SideLossOptions losses = side_losses_of(spec);
  if (!losses.any()) return;
  const bool by_sequence = losses.groups == LossGroups::kSequence;
  if (!by_sequence && spec.batching.kind != BatchingKind::kFixed) {
    refuse(fmt::format("run.experts.groups is {}, but with {} batching one device does not know "
                       "which sequences a microbatch has",
                       losses.groups, spec.batching.kind),
           "set run.experts.groups: sequence");
  }
  if (!by_sequence && spec.is(ModelWorkload::kPolicy)) {
    refuse(fmt::format("run.experts.groups is {}, but stages of a policy may have other "
                       "microbatches",
                       losses.groups),
           "set run.experts.groups: sequence");
  }
  if (losses.form != BalancingForm::kPooled || losses.balance == 0) return;
  if (losses.groups == LossGroups::kGlobal) {
    refuse("the pooled balancing loss is that of one microbatch, but run.experts.groups is global",
           "set run.experts.balance.form: per_layer, or other groups");
  }
}

// One device decides by the model's own loss which steps of float16 overflow.
void refuse_narrow_heads(const CaseSpec& spec, const ModelConfig& config) {
  if (config.extra_heads == 0 || spec.precision != Precision::kFloat16) return;
  refuse(fmt::format("float16 with {} does not run: one device does not know which of their "
                     "gradients overflow",
                     count_of(config.extra_heads, "extra head")),
         "set precision: bfloat16, or model.num_nextn_predict_layers: 0");
}

// What stages of a pipeline do not run yet.
void refuse_in_stages(const CaseSpec& spec, const ParallelSpec& parallel) {
  if (parallel.pp == 1) return;
  const auto refuse_beside = [&](const char* what, const char* fix) {
    refuse(fmt::format("{} does not run on the {} ranks of axis pp", what, parallel.pp), fix);
  };
  const bool fails = std::ranges::any_of(spec.stages, [](const StageSpec& stage) {
    const bool ends_whole = stage.kind == StageKind::kSave || stage.kind == StageKind::kLoad;
    return stage.interrupted_after > 0 || (stage.fails && !ends_whole);
  });
  if (fails) {
    refuse_beside("a stage that throws in the middle, on ranks that wait for each other,",
                  "set pipeline_parallel_size to 1, or leave `fails` and `interrupted_after` out");
  }
  if (spec.init == WeightInit::kOwnStream) {
    refuse_beside("model.init: own_stream, whose streams pass through all layers,",
                  "set pipeline_parallel_size to 1, or model.init: master");
  }
  if (spec.fused_norm) {
    refuse_beside("run.scoring.fused_norm, which joins the last sum of a layer and the next norm,",
                  "set pipeline_parallel_size to 1, or leave it out");
  }
  const SideLossOptions losses = side_losses_of(spec);
  if (losses.form == BalancingForm::kPooled && losses.balance != 0) {
    refuse(fmt::format("the pooled balancing loss depends on the routes of all layers, which the "
                       "{} ranks of pp do not have",
                       parallel.pp),
           spec.side_losses.balance >= 0
               ? "set run.experts.balance.form: per_layer"
               : "set run.experts.balance.coefficient, whose form is per_layer");
  }
  const Pipeline pipeline = pipeline_of(parallel_options(parallel).pipeline, parallel.mesh());
  if (parallel.deferred_wgrad > 0 && pipeline.splits_backward()) {
    refuse(fmt::format("the schedule {} computes the gradients of matrices apart from a backward, "
                       "and parallel.tp.deferred_wgrad leaves those of {} microbatches to the end",
                       pipeline.schedule, parallel.deferred_wgrad),
           "set parallel.tp.deferred_wgrad: 0, or parallel.pp.schedule to 1f1b or interleaved");
  }
}

}  // namespace

void refuse_unsupported(const CaseSpec& spec, const ModelConfig& config, int64_t samples) {
  if (spec.is(ModelWorkload::kPolicy)) {
    refuse_unfit_model(spec.parallel, config);
    refuse_main_gradients(spec, spec.parallel);
  }
  refuse_deferral_of_shards(spec.parallel);
  refuse_in_stages(spec, spec.parallel);
  refuse_beside_experts(spec, config);
  refuse_narrow_experts(spec, config);
  refuse_parted_matrices(spec, config);
  refuse_training_of_routers(spec, config);
  refuse_side_losses(spec);
  refuse_narrow_heads(spec, config);
  for (const StageSpec& stage : spec.stages) {
    if (stage.kind != StageKind::kLoad) continue;
    refuse_unfit_model(stage.parallel, config);
    refuse_main_gradients(spec, stage.parallel);
    refuse_deferral_of_shards(stage.parallel);
    refuse_in_stages(spec, stage.parallel);
  }
  for (const TrainedBatch& batch : trained_batches(spec, samples)) {
    if (spec.loss.kind == LossKind::kPreference) refuse_parted_pairs(spec, batch);
    if (spec.data.uneven || batch.samples % batch.shares == 0) continue;
    refuse(fmt::format("the global batch of {} samples does not divide by {}={}", batch.samples,
                       keys_of_shares(), batch.shares),
           "change the batch or the mesh, or set data.uneven: true to deal uneven shares");
  }
}

}  // namespace shardproof::sim::world
