#include "sim/describe/rank_measurement.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "model/decoder.h"
#include "model/precision.h"
#include "model/weights.h"
#include "sim/describe/loopback.h"
#include "sim/world/calls/call_trace.h"
#include "sim/world/rank/case_options.h"
#include "sim/world/rank/refusals.h"
#include "sim/world/rank/run_rank.h"
#include "tensor/tensor_memory.h"
#include "train/trainer.h"

namespace shardproof::sim::describe {
namespace {

constexpr double kMostParameters = 1e8;  // that a described rank makes
constexpr double kMostProducts = 2.5e9;  // of two numbers, in one forward

RankMeasurement run_alone(const CaseSpec& spec, const ModelConfig& config, const Batch& batch,
                          int64_t rank) {
  world::prepare_rank_thread();
  const Mesh mesh = spec.parallel.mesh();
  world::CallTrace trace;
  MeshComm comm(mesh, rank, loopback_factory(rank), &trace);
  NoProbe nobody;
  const auto weights = weights_to_come(config);
  const TensorMemory memory;
  const ParallelStyles styles = make_styles(world::parallel_options(spec.parallel));
  Decoder model = planned_model(config, weights, comm, styles, spec.frozen);
  const RankSetup setup{.mesh = mesh,
                        .rank = rank,
                        .comm = comm,
                        .probe = nobody,
                        .dtype = dtype_of_precision(name_of(spec.precision)),
                        .device = at::kCPU};
  Trainer trainer(setup, model, styles, world::train_options(spec));
  const bool scores = spec.is(ModelWorkload::kLogprobs);
  const int64_t steps = scores ? 1 : std::min<int64_t>(spec.steps, 2);
  int64_t held_before = memory.current_bytes();
  if (scores) trainer.score(batch);
  for (int64_t step = 0; !scores && step < steps; ++step) {
    held_before = memory.current_bytes();
    trainer.step(batch);
  }
  const HeldBytes held = trainer.held_bytes();
  return {.steps = steps,
          .bytes = {{"parameters", held.parameters},
                    {"gradients", held.gradients},
                    {"optimizer", held.optimizer},
                    {"activations", memory.peak_bytes() - held_before},
                    {"at most at once", memory.peak_bytes()}},
          .calls = trace.counts()};
}

bool takes_long(const CaseSpec& spec, const ModelConfig& config, const Batch& batch) {
  double parameters = 0;
  for (const auto& [name, shape] : weight_shapes(config)) {
    parameters += std::accumulate(shape.begin(), shape.end(), 1.0, std::multiplies<>());
  }
  const ParallelSpec& parallel = spec.parallel;
  parameters /= static_cast<double>(parallel.ranks(Share::kModel));
  const auto tokens =
      static_cast<double>(batch.size() * batch.seq_len()) /
      static_cast<double>(parallel.ranks(Share::kSamples) * parallel.ranks(Share::kPositions));
  const double attention =
      static_cast<double>(config.num_hidden_layers * config.num_attention_heads * config.head_dim) /
      static_cast<double>(parallel.ranks(Share::kModel)) * static_cast<double>(batch.seq_len());
  return parameters > kMostParameters || tokens * (parameters + attention) > kMostProducts;
}

// The line through the values at 1 and 2, at `count`. Both have the same names.
template <class Numbers>
Numbers on_line(const Numbers& one, Numbers two, int64_t count) {
  SHARDPROOF_ASSERT(one.size() == two.size(), "a second layer or sample makes no new kind of call");
  auto first = one.begin();
  for (auto& [name, value] : two) {
    value = first->second + (count - 1) * (value - first->second);
    ++first;
  }
  return two;
}

RankMeasurement on_line(const RankMeasurement& one, const RankMeasurement& two, int64_t count) {
  return {.steps = one.steps,
          .extended = true,
          .bytes = on_line(one.bytes, two.bytes, count),
          .calls = on_line(one.calls, two.calls, count)};
}

// The fewest samples that leave each share one, or a pair where the loss compares pairs.
int64_t smallest_batch(const CaseSpec& spec) {
  const bool pairs = world::train_options(spec).loss.kind == LossKind::kPreference;
  return (pairs ? 2 : 1) * spec.parallel.ranks(Share::kSamples);
}

// Packed and dynamic microbatches, and those of a given size, do not.
bool grows_with_batch(const CaseSpec& spec, const Batch& batch) {
  return spec.batching.kind == BatchingKind::kFixed && spec.micro_batch_size <= 0 &&
         batch.size() % smallest_batch(spec) == 0 && batch.size() > smallest_batch(spec);
}

}  // namespace

std::optional<RankMeasurement> measure_rank(const CaseSpec& spec, const ModelConfig& config,
                                            const Batch& batch, int64_t rank) {
  world::refuse_unsupported(spec, config, batch.size());
  if (!takes_long(spec, config, batch)) return run_alone(spec, config, batch, rank);
  const bool grows = grows_with_batch(spec, batch);
  const int64_t share = smallest_batch(spec);
  ModelConfig small = config;
  small.num_hidden_layers = 2;
  // A plan and run.frozen may name layers.
  const bool any_layer = spec.parallel.custom_plan.empty() && spec.frozen.empty();
  if (!any_layer || takes_long(spec, small, grows ? batch.slice(0, 2 * share) : batch)) {
    return std::nullopt;
  }
  const auto with_layers = [&](int64_t layers) {
    small.num_hidden_layers = layers;
    if (!grows) return run_alone(spec, small, batch, rank);
    return on_line(run_alone(spec, small, batch.slice(0, share), rank),
                   run_alone(spec, small, batch.slice(0, 2 * share), rank), batch.size() / share);
  };
  const RankMeasurement one = with_layers(1);
  return on_line(one, with_layers(2), config.num_hidden_layers);
}

}  // namespace shardproof::sim::describe
