// Replicated data parallelism as a store: every rank of the axes of tokens holds equal parameters,
// and gradients are averaged over those axes once per step.
#pragma once

#include "base/training_choices.h"
#include "parallel/data/microbatch_gradients.h"
#include "parallel/style/parameter_store.h"

namespace shardproof {

class ReplicatedModel : public ParameterStore {
 public:
  // With kMain, the weights of linears get main gradients.
  ReplicatedModel(const StoreSetup& setup, GradientPlace gradients);
  void begin_microbatch(bool) override { kept_.begin(parameters_); }
  void finish_backward() override { kept_.keep(parameters_); }
  std::vector<at::Tensor> take_gradients() override { return kept_.take(parameters_); }
  // all_reduce(avg) in buckets (average_parameter_gradients)
  void average(std::vector<at::Tensor>& grads) override;
  void refresh() override;
  void settle() override {}
  void abandon_step() override { kept_.drop(parameters_); }
  std::shared_ptr<void> hold_whole() override { return nullptr; }

 private:
  std::vector<ParameterPtr> parameters_;
  MeshComm& comm_;
  std::vector<std::string> token_axes_;
  MicrobatchGradients kept_;
};

}  // namespace shardproof
