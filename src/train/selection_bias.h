// Moves the selection biases of a model's routers during training (model/moe/selection_bias.h):
// after each step by the routes of the whole step, equally on all ranks. A bias has no gradient. It
// is a parameter that is not trained, and so a part of checkpoints and refits.
//
// Source: NVIDIA/Megatron-LM megatron/core/distributed/finalize_model_grads.py,
// _update_router_expert_bias. Golden: golden/router_bias.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <utility>
#include <vector>

#include "base/expert_choices.h"
#include "comm/mesh_comm.h"
#include "model/decoder.h"
#include "model/moe/selection_bias.h"

namespace shardproof {

class SelectionBiases {
 public:
  // Counts the routes of every router of the model; each must have a bias. `comm` must outlive the
  // model.
  SelectionBiases(Decoder& model, const BiasRule& rule, MeshComm& comm, at::Device device);

  void begin();  // counts from here on
  void end() { counts_now_ = false; }
  // After the last backward of a step.
  //
  //   all_reduce(sum) of the counts over all ranks
  void reduce();
  // Moves this rank's shard of each bias by the counts of the last reduce(), in place.
  void move(const std::vector<ParameterPtr>& parameters, const std::vector<at::Tensor>& masters);

  void count(int64_t layer, const at::Tensor& ids, const StepContext& context);

 private:
  BiasRule options_;
  int64_t num_experts_;
  MeshComm& comm_;
  at::Device device_;
  bool counts_now_ = false;
  std::map<std::string, std::vector<int64_t>> layers_;        // that have the bias, by its name
  std::map<std::pair<int64_t, int64_t>, at::Tensor> counts_;  // [N] by layer and microbatch
  std::map<int64_t, at::Tensor> reduced_;                     // [N] by layer
};

}  // namespace shardproof
