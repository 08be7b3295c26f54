#include "sim/world/rank/refusals.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "model/weights.h"
#include "parallel/tp/describe.h"
#include "parallel/ulysses/head_shares.h"
#include "sim/world/rank/case_options.h"
#include "sim/world/rank/fsdp_options.h"

namespace shardproof::sim {
namespace {

// The samples of an optimizer step, and the mesh over which they are distributed.
struct TrainedBatch {
  int64_t samples, micro_batch_size, dp;
};

[[noreturn]] void refuse(std::string what, std::string fix) {
  throw Error({.kind = ErrorKind::kRefused, .what = std::move(what), .fix = std::move(fix)});
}

std::vector<TrainedBatch> trained_batches(const CaseSpec& spec, int64_t samples) {
  if (spec.is(ModelWorkload::kTrain)) return {{samples, spec.micro_batch_size, spec.parallel.dp}};
  std::vector<TrainedBatch> batches;
  for (const StageSpec& stage : spec.stages) {
    if (stage.kind != StageKind::kTrain) continue;
    batches.push_back({stage.global_batch_size, stage.micro_batch_size, stage.parallel.dp});
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

// Throws the errors that the plans would throw when they are applied.
void refuse_uncut_heads(const ParallelSpec& parallel, const ModelConfig& config) {
  plan_lines(config, parallel.mesh(), tensor_parallel_options(parallel));
  if (parallel.ulysses == 1) return;
  const int64_t kv_heads = std::max<int64_t>(config.num_key_value_heads / parallel.tp, 1);
  head_shares(config.num_attention_heads / parallel.tp, kv_heads, parallel.ulysses);
}

bool is_frozen(const CaseSpec& spec, const std::string& parameter) {
  return std::any_of(spec.frozen.begin(), spec.frozen.end(), [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), parameter.c_str(), 0) == 0;
  });
}

// A planned failure is in the backward of a layer.
void refuse_failure_without_backward(const CaseSpec& spec, const ModelConfig& config) {
  const bool fails = std::any_of(spec.stages.begin(), spec.stages.end(),
                                 [](const StageSpec& stage) { return stage.fails; });
  if (!fails) return;
  for (const auto& [name, shape] : weight_shapes(config)) {
    const bool below = name.starts_with("model.layers.") || name.starts_with("model.embed_tokens.");
    if (below && !is_frozen(spec, name)) return;
  }
  refuse(
      "a stage train is to fail in the backward of a layer, and no backward reaches one: the "
      "layers and what lies before them are frozen",
      "leave a layer to train, or leave `fails` out");
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

}  // namespace

void refuse_unsupported(const CaseSpec& spec, const ModelConfig& config, int64_t samples) {
  if (spec.is(ModelWorkload::kPolicy)) refuse_uncut_heads(spec.parallel, config);
  refuse_deferral_of_shards(spec.parallel);
  for (const StageSpec& stage : spec.stages) {
    if (stage.kind != StageKind::kLoad) continue;
    refuse_uncut_heads(stage.parallel, config);
    refuse_deferral_of_shards(stage.parallel);
  }
  refuse_failure_without_backward(spec, config);
  for (const TrainedBatch& batch : trained_batches(spec, samples)) {
    if (spec.loss.kind == LossKind::kPreference) refuse_parted_pairs(spec, batch);
    if (spec.data.uneven || batch.samples % batch.dp == 0) continue;
    refuse(fmt::format("the global batch of {} samples does not divide by data_parallel_size={}",
                       batch.samples, batch.dp),
           "change the batch or the mesh, or set data.uneven: true to deal uneven shares");
  }
}

}  // namespace shardproof::sim
