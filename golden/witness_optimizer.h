// Clipping and optimizer steps by LibTorch's torch::optim and torch::nn::utils, which are
// independent witnesses against src/optim. Muon, which LibTorch does not have, is that of muon.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
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
  // Updates `masters` in place; `names` are those of the parameters. Throws Error(kBadInput) for an
  // unknown optimizer.
  WitnessOptimizer(const sim::OptimizerSpec& spec, std::vector<at::Tensor> masters,
                   std::vector<std::string> names);
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
  // The matrix that the last step made orthogonal; undefined for a parameter without Muon.
  const at::Tensor& made_orthogonal(size_t index) const { return directions_[index]; }

 private:
  void step_of_muon(size_t index, double learning_rate);

  sim::OptimizerSpec spec_;
  double max_norm_, norm_type_;
  std::vector<at::Tensor> masters_;
  std::vector<std::string> names_;
  std::vector<bool> has_muon_;
  std::vector<at::Tensor> momenta_, directions_;        // of Muon
  std::unique_ptr<torch::optim::Optimizer> optimizer_;  // of the other parameters
};

}  // namespace shardproof::golden
