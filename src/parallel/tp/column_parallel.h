// A linear layer whose weight rows (output features) are cut over tp.
//
//   forward    x [B, S, E]            (SP: [B, S_tp, E], all_gather over the sequence)
//              y = x W_tp^T + b_tp    [B, S, F_tp]     (gathered: all_gather to [B, S, F])
//   backward   grad_x [B, S, E] {U_tp}  all_reduce     (SP: reduce_scatter to [B, S_tp, E])
//
// Each rank computes other features of the same x, so each holds an addend of its gradient. A
// gathered y goes into computation that all ranks repeat, so its gradient is sliced, not summed.
//
// Legend: B batch, S sequence, E in, F out; S_tp, F_tp this rank's part.
// Source: Megatron-LM layers.py, ColumnParallelLinear; NeMo-RL parallelize.py, ColwiseParallel.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "model/slot.h"

namespace shardproof {

class ColumnParallelLinear : public Layer {
 public:
  struct Options {
    std::string label;               // of the collectives: the slot's name
    bool sequence_parallel = false;  // x is this rank's part of the sequence
    bool gather_output = false;
    std::vector<int64_t> output_parts = {};  // gather_output: features of each tp rank
  };
  // `bias` may be null. `tp` must outlive the layer and its backward.
  ColumnParallelLinear(ParameterPtr weight, ParameterPtr bias, Communicator& tp, Options options)
      : weight_(std::move(weight)), bias_(std::move(bias)), tp_(tp), options_(std::move(options)) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  std::vector<ParameterPtr> parameters() const override;

 private:
  ParameterPtr weight_, bias_;
  Communicator& tp_;
  Options options_;
};

}  // namespace shardproof
