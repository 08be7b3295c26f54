// Clipping and optimizer steps by LibTorch's torch::optim and torch::nn::utils, which are
// independent witnesses against src/optim.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

#include "observe/observation_kind.h"
#include "sim/case/case_spec.h"

namespace torch::optim {
class Optimizer;
}

namespace shardproof::golden {

class WitnessOptimizer {
 public:
  // Updates `masters` in place. Throws Error(kBadInput) for an unknown optimizer.
  WitnessOptimizer(const sim::OptimizerSpec& spec, std::vector<at::Tensor> masters);
  ~WitnessOptimizer();

  // Clips and makes one step at `learning_rate`. `grads` has one tensor per master, of its shape
  // and dtype, and is clipped in place. Returns the norm of all gradients before clipping.
  double step(std::vector<at::Tensor> grads, double learning_rate);
  // Copies of the masters and of all state.
  struct Saved;
  std::shared_ptr<const Saved> save() const;
  void load(const Saved& saved);
  // The moments, or the momentum buffer, of one master after a step.
  std::vector<std::pair<ObservationKind, at::Tensor>> state_of(size_t index) const;

 private:
  double max_norm_, norm_type_;
  std::vector<at::Tensor> masters_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace shardproof::golden
