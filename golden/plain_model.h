// The model with its plain layers on one device: a batch scored, a loss evaluated, a training step,
// every value told to a probe.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "golden/overflow_skips.h"
#include "golden/single_device.h"
#include "golden/witness_optimizer.h"
#include "model/decoder.h"

namespace shardproof::golden {

class PlainModel {
 public:
  // What is given outlives it.
  PlainModel(const sim::CaseSpec& spec, const CaseData& data, const RunOptions& options,
             Probe& probe);

  // One per parameter, in the wider type, written to by an optimizer over them.
  const std::vector<at::Tensor>& masters() const { return masters_; }
  void set_masters(const std::vector<at::Tensor>& masters);
  // Normal noise on every weight, drawn from the seed and the weight's name; observed as of step 0.
  void add_noise(double std, int64_t seed);

  // [B, S], as dense_logprobs.
  at::Tensor score(const Batch& batch, int64_t step);
  // What a step reports of the batch: loss and metrics.
  void evaluate(const Batch& batch, int64_t step);
  // `optimizer` is over masters().
  void train(const Batch& batch, int64_t step, WitnessOptimizer& optimizer, double rate);
  // Parameters and optimizer state as they are.
  void observe_state(int64_t step, const WitnessOptimizer& optimizer);
  // A value of the step phase under a name of its own.
  void observe(const std::string& name, Phase phase, int64_t step, const at::Tensor& tensor,
               const at::Tensor& token_map = {});
  const std::vector<ParameterPtr>& parameters() const { return parameters_; }
  // Of a float16 run; of others it stays as it is.
  const OverflowSkips::State& loss_scale() const { return skips_.state(); }
  void set_loss_scale(const OverflowSkips::State& state) { skips_.set_state(state); }

 private:
  at::Tensor logprobs(const Batch& batch, int64_t step);
  std::vector<at::Tensor> take_gradients(int64_t step);
  void observe_metrics(const at::Tensor& logprobs, const Batch& batch, int64_t step);

  const sim::CaseSpec& spec_;
  Probe& probe_;
  const Perturbation* perturbation_;
  Decoder model_;
  std::vector<ParameterPtr> parameters_;
  std::vector<at::Tensor> masters_;
  OverflowSkips skips_;
};

}  // namespace shardproof::golden
