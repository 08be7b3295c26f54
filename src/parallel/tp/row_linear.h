// The row-parallel linear layer that a framework offers, with all its options. It owns its
// parameters. (row_parallel.h is the plan's: it stands in a model's slot and takes the slot's.)
//
//   forward    x [.., F_tp]            (not input_is_parallel: [.., F], this rank's part is cut
//   out)
//              y = x W_tp^T {U_tp}     all_reduce    (SP: reduce_scatter to [.., S_tp, .., E])
//              y + b                   the bias once, after the sum
//   backward   grad_y [.., E]          nothing       (SP: all_gather from [.., S_tp, .., E])
//              (not input_is_parallel: grad_x [.., F_tp], all_gather to [.., F])
//
// With SP the bias meets only this rank's tokens: its gradient is an addend (`sequence_parallel`
// mark). With several blocks a whole x is cut block by block, as the weight is. (Megatron-LM cuts
// one run of it, which are other features than the weight's.)
//
// Legend: F in, E out, S sequence; F_tp, S_tp this rank's part, {U_tp} not yet summed over tp.
// Golden  y = x W^T + b on one device.
// Source  Megatron-LM layers.py, RowParallelLinear.
#pragma once

#include <optional>
#include <string>

#include "comm/communicator.h"
#include "parallel/tp/column_linear.h"
#include "parallel/tp/layer_parameter.h"
#include "parallel/tp/sharded_state.h"

namespace shardproof {

class RowLinear {
 public:
  struct Options {
    std::string label = "row_linear";  // of the collectives
    int64_t input_size = 0, output_size = 0;
    bool bias = true;  // whole on every rank, zero at first
    bool skip_bias_add = false;
    bool input_is_parallel = true;
    int64_t stride = 1;              // equal blocks of the input features, each cut evenly
    bool frozen = false;             // the weight is not trained
    bool sequence_parallel = false;  // the output is this rank's part of the sequence
    int64_t sequence_dim = 0;        // [S, B, E]
    // For the gradient that SP gathers; outlives the backward. Null: none
    GatherBuffer* gather_buffer = nullptr;
    bool expert =
        false;  // of a mixture: the dispatcher sums, and the caller adds the bias after it
    bool expert_parallel = false;
    at::ScalarType dtype = at::ScalarType::Float;
    InitMethod init = {};  // of the weight; null: zeros
    InitFrom init_from = InitFrom::kMaster;
    bool keep_master = false;
    bool main_gradient = false;  // accumulate into a wide buffer (main_gradient.h)
  };

  // Throws Error(kRefused), each with its own sentence: sizes that do not divide (both numbers), a
  // stride that does not divide, sequence_parallel without input_is_parallel, an expert's bias that
  // each rank would add.
  RowLinear(Options options, Communicator& tp);
  LinearOutput forward(const at::Tensor& x);

  LayerParameter& weight() { return weight_; }
  LayerParameter* bias() { return bias_ ? &*bias_ : nullptr; }
  bool sequence_parallel() const { return sequence_parallel_; }

  // The weight cut along dim 1, the bias whole.
  ShardedState sharded_state(const StateKey& key) const;
  void load(const ShardedState& saved, const StateKey& key);

 private:
  at::Tensor sum(const at::Tensor& addend);

  Options options_;
  Communicator& tp_;
  bool silent_;  // an expert's: the dispatcher communicates
  bool sequence_parallel_;
  LayerParameter weight_;
  std::optional<LayerParameter> bias_;
};

}  // namespace shardproof
