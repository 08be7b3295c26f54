// Replicated data parallelism as a store: every rank of the axes of tokens holds equal parameters,
// and gradients are averaged over those axes once per step.
#pragma once

#include "base/training_choices.h"
#include "parallel/style/parameter_store.h"

namespace shardproof {

class ReplicatedModel : public ParameterStore {
 public:
  // With kMain, the weights of linears get main gradients. Their buffers have memory from a step's
  // first forward until its gradients are taken.
  ReplicatedModel(const StoreSetup& setup, GradientPlace gradients);
  void before(const Action& action, Complete complete) override;
  void after(const Action& action, Complete complete) override;
  std::vector<at::Tensor> take_gradients() override;
  // all_reduce(avg) in buckets (average_parameter_gradients)
  void average(std::vector<at::Tensor>& grads) override;
  void refresh() override;
  at::Tensor leaf_of(const Parameter& parameter) const override;
  void settle() override {}
  void abandon_step() override;
  std::shared_ptr<void> hold_whole() override { return nullptr; }

 private:
  void keep_gradients();
  std::vector<ParameterPtr> parameters_;
  MeshComm& comm_;
  std::vector<std::string> token_axes_;
  // The sums of the gradients of each backward in the wider type (model/precision.h), for leaves
  // below it; empty: nothing yet. Autograd itself adds to a low-precision leaf in that precision
  // and loses small addends. Fully sharded units also sum in the wider type.
  std::vector<at::Tensor> kept_;
};

}  // namespace shardproof
