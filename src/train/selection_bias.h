// The selection biases of a model's routers during training (model/moe/selection_bias.h): zero at
// the start, and moved after each step by the routes of the whole step, equally on all ranks. A
// bias has neither a gradient nor a master: it stays in the wider type.
//
// Source: NVIDIA/Megatron-LM megatron/core/distributed/finalize_model_grads.py,
// _update_router_expert_bias. Golden: golden/router_bias.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <utility>

#include "base/expert_choices.h"
#include "comm/mesh_comm.h"
#include "model/decoder.h"
#include "model/moe/selection_bias.h"

namespace shardproof {

class SelectionBiases {
 public:
  // Gives every router of the model a bias. `comm` must outlive the model. Throws Error(kRefused)
  // for a rule that knows none.
  SelectionBiases(Decoder& model, const BiasRule& rule, MeshComm& comm, at::ScalarType wide,
                  at::Device device);

  void begin();  // counts from here on
  void end() { counts_now_ = false; }
  // After the last backward of a step.
  //
  //   all_reduce(sum) of the counts over all ranks
  void update();
  const std::map<int64_t, at::Tensor>& by_layer() const { return biases_; }  // [N] each

  at::Tensor select(int64_t layer, const at::Tensor& logits, const StepContext& context);

 private:
  BiasRule options_;
  RouterRule rule_;
  MeshComm& comm_;
  bool counts_now_ = false;
  std::map<int64_t, at::Tensor> biases_;
  std::map<std::pair<int64_t, int64_t>, at::Tensor> counts_;  // [N] by layer and microbatch
};

}  // namespace shardproof
