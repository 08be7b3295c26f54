// The model with its plain layers on one device: scores a batch, evaluates a loss or makes a
// training step, and gives every value to a probe.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "golden/kept_routes.h"
#include "golden/limited_experts.h"
#include "golden/overflow_skips.h"
#include "golden/router_bias.h"
#include "golden/side_terms.h"
#include "golden/single_device.h"
#include "golden/weight_terms.h"
#include "golden/witness_optimizer.h"
#include "model/decoder.h"

namespace shardproof::golden {

class PlainModel {
 public:
  // The arguments must outlive it.
  PlainModel(const sim::CaseSpec& spec, const CaseData& data, const RunOptions& options,
             Probe& probe);

  // One per parameter, in the wider type; the optimizer over them writes to them.
  const std::vector<at::Tensor>& masters() const { return masters_; }
  void set_masters(const std::vector<at::Tensor>& masters);
  // Adds normal noise to every trained weight, drawn from the seed and the weight's name, and
  // observes the weights in step 0.
  void add_noise(double std, int64_t seed);

  // Returns [B, S], as dense_logprobs does.
  at::Tensor score(const Batch& batch, int64_t step);
  // Observes the loss and metrics of the batch.
  void evaluate(const Batch& batch, int64_t step);
  // Makes one training step. `optimizer` must be over masters().
  void train(const Batch& batch, int64_t step, WitnessOptimizer& optimizer, double rate);
  void observe_side_parts(const Batch& batch, int64_t step);
  void observe_state(int64_t step, const WitnessOptimizer& optimizer);
  // Observes a value under the given name.
  void observe(ObservationKind kind, const std::string& name, Phase phase, int64_t step,
               const at::Tensor& tensor);
  KeptRoutes& routes() { return kept_routes_; }
  const std::vector<ParameterPtr>& parameters() const { return parameters_; }
  // The optimizer of the case, over masters().
  WitnessOptimizer optimizer() const;
  // Changes only in a float16 run.
  const OverflowSkips::State& loss_scale() const { return skips_.state(); }
  void set_loss_scale(const OverflowSkips::State& state) { skips_.set_state(state); }

 private:
  // With `of_heads` those of the extra heads too.
  at::Tensor logprobs(const Batch& batch, int64_t step, Probe& probe,
                      std::vector<at::Tensor>* of_heads = nullptr);
  void observe_logprobs(const at::Tensor& logprobs, const Batch& batch, int64_t depth, int64_t step,
                        Probe& probe) const;
  std::vector<at::Tensor> take_gradients(int64_t step);
  // Whether the step would be skipped otherwise if gradients were summed in parts.
  bool parts_decide(const Batch& batch, int64_t step, bool overflow);
  // Whether gradients overflow that are sums over positions, and no rank's sum does where ranks
  // share the positions in some way; nor would any gradient in sixteen equal parts.
  bool only_a_sum_overflows(const Batch& batch, int64_t step);
  // Whether a gradient overflows when each sample is summed alone, and cut into so many parts.
  bool overflows_in_parts(const Batch& batch, int64_t step, int64_t parts);
  void observe_metrics(const at::Tensor& logprobs, const Batch& batch, int64_t step);
  void observe_values(const std::map<std::string, double>& values, int64_t step);

  const sim::CaseSpec& spec_;
  Probe& probe_;
  const Perturbation* perturbation_;
  Decoder model_;
  std::shared_ptr<WeightTerms> terms_;  // where parted_skips_ is; inside of all that wraps layers
  SideTerms side_terms_;
  LimitedExperts limited_experts_;
  KeptRoutes kept_routes_;
  RouterBiases router_biases_;  // around the routes that are kept
  std::vector<ParameterPtr> parameters_;
  std::vector<at::Tensor> masters_;
  OverflowSkips skips_;
  std::shared_ptr<std::vector<int64_t>> parted_skips_;
};

}  // namespace shardproof::golden
