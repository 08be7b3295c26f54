#include "sim/describe/rank_measurement.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/error.h"
#include "comm/mesh_comm.h"
#include "model/decoder.h"
#include "model/precision.h"
#include "model/weights.h"
#include "sim/world/calls/call_trace.h"
#include "sim/world/rank/case_options.h"
#include "sim/world/rank/refusals.h"
#include "sim/world/rank/run_rank.h"
#include "tensor/tensor_memory.h"
#include "train/trainer.h"

namespace shardproof::sim::describe {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

class DoneWork final : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
};

WorkPtr done() { return c10::make_intrusive<DoneWork>(); }

class LoopbackBackend final : public c10d::Backend {
 public:
  using Backend::Backend;
  // Communicators choose the calls that they make by this name.
  const std::string getBackendName() const override { return "emulated"; }

  WorkPtr allreduce(Tensors&, const c10d::AllreduceOptions&) override { return done(); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    if (options.rootRank != rank_) tensors[0].zero_();
    return done();
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions&) override {
    for (at::Tensor& output : outputs[0]) {
      if (output.sizes() == inputs[0].sizes()) {
        output.copy_(inputs[0]);
      } else {
        output.zero_();
      }
    }
    return done();
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions&) override {
    output.view({size_, -1}).copy_(input.view({1, -1}));
    return done();
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions&) override {
    outputs[0].copy_(inputs[0][static_cast<size_t>(rank_)]);
    return done();
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions&) override {
    output.view({-1}).copy_(input.view({size_, -1})[rank_]);
    return done();
  }

  // Every other rank sends what this one sends, where that has the right size: sizes that ranks
  // exchange must fit.
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>&,
                        std::vector<int64_t>&, const c10d::AllToAllOptions&) override {
    if (output.sizes() == input.sizes()) {
      output.copy_(input);
    } else {
      output.zero_();
    }
    return done();
  }

  WorkPtr send(Tensors&, int, int) override { return done(); }

  WorkPtr recv(Tensors& tensors, int, int) override {
    tensors[0].zero_();
    return done();
  }
};

// One rank of a mesh without its peers: groups in which every call ends at once. A reduction
// returns this rank's own addend, a gather its own piece in the place of every piece of that shape,
// an all-to-all its own input where it has the shape of the output. Other data that a peer would
// send are zeros. Shapes and numbers of calls are those of a run with peers, values are not.
// gather, scatter and barrier, which no training step makes, throw.
BackendFactory loopback_factory(int64_t rank) {
  return [rank](const std::string&, const std::vector<int64_t>& ranks) {
    const auto own = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
    return c10::make_intrusive<LoopbackBackend>(static_cast<int>(own),
                                                static_cast<int>(ranks.size()));
  };
}

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

bool are_equal(const std::vector<bool>& layers) {
  return std::adjacent_find(layers.begin(), layers.end(), std::not_equal_to<>()) == layers.end();
}

// Whether each layer adds the same to what the rank holds and calls.
bool layers_add_up(const CaseSpec& spec, const ModelConfig& config) {
  // A plan and run.frozen may name layers.
  return spec.parallel.custom_plan.empty() && spec.frozen.empty() && spec.parallel.pp == 1 &&
         are_equal(config.expert_layers) && are_equal(config.sliding_layers);
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
  if (!layers_add_up(spec, config) ||
      takes_long(spec, small, grows ? batch.slice(0, 2 * share) : batch)) {
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
