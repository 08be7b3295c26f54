// The column-parallel linear layer that a framework offers, with all its options. It owns its
// parameters. (column_parallel.h is the plan's: it stands in a model's slot and takes the slot's.)
//
//   forward    x [.., E]               (SP: [.., S_tp, .., E], all_gather over sequence_dim)
//              y = x W_tp^T + b_tp     [.., F_tp]   (gathered: all_gather to [.., F], full order)
//   backward   grad_x [.., E] {U_tp}   all_reduce   (SP: reduce_scatter to [.., S_tp, .., E])
//              asynchronously, behind grad_W (async_linear.h)
//
// A gathered y goes into computation that all ranks repeat: its gradient is sliced, not summed.
// With several blocks a rank holds its part of each (gate and up), and a gathered y is put back
// into the order of the full layer. (Megatron-LM leaves it in rank order, which depends on tp.)
//
// Legend: E in, F out, S sequence; F_tp, S_tp this rank's part, {U_tp} not yet summed over tp.
// Golden  y = x W^T + b on one device.
// Source  Megatron-LM layers.py, ColumnParallelLinear.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collective/gather_buffer.h"
#include "comm/communicator.h"
#include "parallel/tp/layer_parameter.h"
#include "parallel/tp/main_gradient.h"
#include "parallel/tp/sharded_state.h"

namespace shardproof {

// y, and the bias where the caller is to add it (skip_bias_add), else undefined.
struct LinearOutput {
  at::Tensor output, bias;
};

class ColumnLinear {
 public:
  struct Options {
    std::string label = "column_linear";  // of the collectives
    int64_t input_size = 0, output_size = 0;
    bool bias = true;  // zero at first
    bool skip_bias_add = false;
    bool gather_output = false;
    int64_t stride = 1;                // equal blocks of the output features, each cut evenly ..
    std::vector<int64_t> blocks = {};  // .. or these blocks: a fused q, k, v
    bool external_weight = false;      // the weight comes with each call, [F_tp, E]
    bool frozen = false;               // the layer's own weight is not trained
    bool sequence_parallel = false;    // with one rank: off, nothing is cut
    int64_t sequence_dim = 0;          // [S, B, E]
    // For the x that SP gathers, twice; outlives the backward. Null: none
    GatherBuffer* gather_buffer = nullptr;
    bool disable_grad_reduce = false;  // grad_x stays an addend: the caller sums it later. Not with
                                       // SP, whose gradient is reduce-scattered all the same
    bool expert = false;               // of a mixture: no communication here, the dispatcher's task
    bool expert_parallel = false;      // its experts are spread over more ranks (`allreduce` mark)
    at::ScalarType dtype = at::ScalarType::Float;
    InitMethod init = {};  // of the weight; null: zeros
    InitFrom init_from = InitFrom::kMaster;
    bool keep_master = false;
    bool main_gradient = false;  // accumulate into a wide buffer (main_gradient.h)
    std::shared_ptr<DeferredWeightGradients> deferred = {};
  };

  // Throws Error(kRefused), each with its own sentence: sizes that do not divide (both numbers), a
  // stride that does not divide, stride beside blocks.
  ColumnLinear(Options options, Communicator& tp);

  struct Call {
    at::Tensor weight = {};                            // undefined: the layer's own
    std::shared_ptr<MainGradient> main_gradient = {};  // of that weight
    std::optional<bool> gather_output = std::nullopt;  // overrides the option
  };
  // Throws Error(kBadInput): no weight anywhere; a weight of another shape (both shapes).
  LinearOutput forward(const at::Tensor& x) { return forward(x, Call{}); }
  LinearOutput forward(const at::Tensor& x, const Call& call);

  LayerParameter* weight() { return weight_ ? &*weight_ : nullptr; }
  LayerParameter* bias() { return bias_ ? &*bias_ : nullptr; }
  bool sequence_parallel() const { return sequence_parallel_; }  // whether it is really on

  // Both cut along dim 0. Loading finds this layer's parts wherever tp was cut when it was saved.
  ShardedState sharded_state(const StateKey& key) const;
  void load(const ShardedState& saved, const StateKey& key);

 private:
  at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     const std::shared_ptr<MainGradient>& main_gradient);

  Options options_;
  Communicator& tp_;
  std::vector<int64_t> blocks_;
  bool silent_;  // an expert's: the dispatcher communicates
  bool sequence_parallel_;
  std::optional<LayerParameter> weight_, bias_;
};

}  // namespace shardproof
