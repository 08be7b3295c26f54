#include "sim/world/rank/fed_optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "optim/muon.h"
#include "tensor/aten_view.h"
#include "tensor/shard.h"

namespace shardproof::sim::world {
namespace {

class GoldenShards {
 public:
  GoldenShards(const RankSetup& setup, const GoldenRecord& golden)
      : setup_(setup), golden_(golden) {}

  // This rank's shard of the golden's tensor of this kind after `step`; undefined: it has none, or
  // only some rows of it.
  at::Tensor get(ObservationKind kind, const Parameter& parameter, int64_t step) const {
    const at::Tensor full = whole(kind, parameter, step);
    return full.defined() ? shard(full, parameter) : full;
  }
  at::Tensor whole(ObservationKind kind, const Parameter& parameter, int64_t step) const {
    const GoldenTensor* tensor =
        golden_.find(Phase::kStep, step, observed_name(kind, parameter.name));
    return tensor && tensor->rows.empty() ? tensor_of(tensor->value) : at::Tensor();
  }
  at::Tensor shard(const at::Tensor& full, const Parameter& parameter) const {
    return cut(full, parameter.layout, setup_.mesh, setup_.rank)
        .to(at::TensorOptions().dtype(at::kDouble).device(setup_.device));
  }

 private:
  const RankSetup& setup_;
  const GoldenRecord& golden_;
};

}  // namespace

void observe_fed_optimizer(const Trainer& trainer, const RankSetup& setup,
                           const GoldenRecord& golden, const InitialShard& initial,
                           const OptimizerOptions& options, double max_norm,
                           const std::vector<int64_t>& steps) {
  const at::NoGradGuard no_grad;
  const auto taken = static_cast<int64_t>(steps.size());
  const int64_t step = steps.back(), before = taken > 1 ? steps[steps.size() - 2] : 0;
  const GoldenTensor* norm = golden.find(Phase::kStep, step, "grad_norm");
  if (!norm) return;
  const GoldenShards shards(setup, golden);
  OptimizerOptions at_rate = options;
  if (const GoldenTensor* rate = golden.find(Phase::kStep, step, "lr")) {
    at_rate.lr = *rate->value.data<double>();
  }
  const auto observe = [&](const Parameter& parameter, const at::Tensor& value) {
    setup.probe.observe({.kind = ObservationKind::kFed,
                         .name = observed_name(ObservationKind::kFed, parameter.name),
                         .phase = Phase::kStep,
                         .step = step,
                         .tensor = value,
                         .layout = parameter.layout});
  };
  const std::vector<ParameterPtr>& parameters = trainer.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = *parameters[i];
    at::Tensor grad = shards.whole(ObservationKind::kGradient, parameter, step);
    if (!grad.defined()) continue;
    if (max_norm > 0) {
      const double factor = max_norm / (*norm->value.data<double>() + 1e-6);
      grad = grad * std::min(1.0, factor);
    }
    const at::Tensor value =
        (taken == 1 ? initial(i) : shards.get(ObservationKind::kParameter, parameter, before))
            .to(setup.device);
    if (options.kind == OptimizerKind::kMuon && !parameter.matrix_rows.empty()) {
      OptimizerState state;
      state.momentum_buffer = shards.whole(ObservationKind::kMomentumBuffer, parameter, before);
      MuonStep made = muon_direction(grad, state, at_rate);
      made.update = shards.shard(muon_update(made.update, parameter.matrix_rows), parameter);
      muon_step(value, made, state, at_rate);
      observe(parameter, value);
      continue;
    }
    OptimizerState state{
        .step = taken - 1,
        .exp_avg = shards.get(ObservationKind::kExpAvg, parameter, before),
        .exp_avg_sq = shards.get(ObservationKind::kExpAvgSq, parameter, before),
        .momentum_buffer = shards.get(ObservationKind::kMomentumBuffer, parameter, before)};
    optimizer_step(value, shards.shard(grad, parameter), state, at_rate);
    observe(parameter, value);
  }
}

void observe_masters(const Trainer& trainer, Probe& probe, ObservationKind kind) {
  if (!probe.listens(Phase::kStep)) return;
  for (size_t i = 0; i < trainer.parameters().size(); ++i) {
    const Parameter& parameter = *trainer.parameters()[i];
    probe.observe({.kind = kind,
                   .name = observed_name(kind, parameter.name),
                   .phase = Phase::kStep,
                   .tensor = trainer.masters()[i],
                   .layout = parameter.layout});
  }
}

at::Tensor initial_shard(const Parameter& parameter, const WeightMap& weights,
                         const RankSetup& setup) {
  return cut(weights.at(parameter.name), parameter.layout, setup.mesh, setup.rank)
      .to(at::TensorOptions().dtype(at::kDouble).device(setup.device));
}

}  // namespace shardproof::sim::world
