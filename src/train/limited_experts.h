// Experts of limited capacity during training (model/moe/capacity.h): the routes that an expert
// does not keep are dropped before the dispatch, so that they have no row, add nothing and have a
// gradient of 0.
//
// Source: NVIDIA/Megatron-LM megatron/core/transformer/moe/moe_utils.py,
// apply_router_token_dropping. Golden: golden/limited_experts.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <utility>

#include "base/expert_choices.h"
#include "comm/mesh_comm.h"
#include "model/decoder.h"
#include "parallel/style/token_cuts.h"

namespace shardproof {

class LimitedExperts {
 public:
  // Wraps the layers that run experts, after all styles have replaced theirs. `comm` must outlive
  // the model.
  LimitedExperts(Decoder& model, const CapacityRule& rule, const TokenCuts& cuts, MeshComm& comm,
                 at::Device device);

  void begin(int64_t seq_len);  // forwards drop routes from here on
  void end() { active_ = false; }
  // The number of routes that the step has dropped, on all ranks and in all layers.
  //
  //   all_reduce(sum) over all ranks
  int64_t take_dropped();

  // The ids of the routes that stay, and -1 in place of the others.
  //
  //   forward   of kSequence: all_gathers of tokens, ids and weights over the ranks that share the
  //             sequences
  at::Tensor kept_ids(int64_t layer, const at::Tensor& ids, const at::Tensor& weights,
                      const StepContext& context);

 private:
  CapacityRule options_;
  RouterRule rule_;
  std::vector<std::string> sequence_axes_;
  MeshComm& comm_;
  at::Device device_;
  bool active_ = false;
  int64_t seq_len_ = 0;
  std::map<std::pair<int64_t, int64_t>, int64_t> dropped_;  // by layer and microbatch
};

}  // namespace shardproof
