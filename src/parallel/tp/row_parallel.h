// A linear layer whose weight columns (input features) are cut over tp.
//
//   forward    x [B, S, F_tp]         (scattered: x [B, S, F], and each rank cuts out its part)
//              y = x W_tp^T {U_tp}    all_reduce       (SP: reduce_scatter to [B, S_tp, E])
//              y + b                  the bias once, after the sum
//   backward   grad_y [B, S, E]       nothing          (SP: all_gather from [B, S_tp, E])
//              (scattered: grad_x [B, S, F_tp], all_gather to [B, S, F])
//
// With SP the bias is added to this rank's tokens only: its gradient is an addend
// (partial_grad_axes). With several blocks a whole x is cut block by block, as the weight is.
// (Megatron-LM cuts out one contiguous run of x, whose features differ from the weight's.)
//
// Legend: B batch, S sequence, F in, E out; F_tp, S_tp this rank's part, {U_tp} not yet summed.
// Source: Megatron-LM layers.py, RowParallelLinear; NeMo-RL parallelize.py, RowwiseParallel.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collective/gather_buffer.h"
#include "comm/communicator.h"
#include "model/slot.h"

namespace shardproof {

class RowParallelLinear : public Layer {
 public:
  struct Options {
    std::string label;                      // of the collectives: the slot's name
    bool sequence_parallel = false;         // y is this rank's part of the sequence
    bool input_is_parallel = true;          // false: x is whole, and this layer cuts it
    std::vector<int64_t> input_parts = {};  // !input_is_parallel: features of each tp rank
    std::vector<int64_t> blocks = {};       // of the input features, each cut evenly; empty: one
    bool skip_bias_add = false;             // the caller adds the bias
    bool caller_communicates = false;       // y stays this rank's addend, as for an expert
    std::shared_ptr<GatherBuffer> gather_buffer = {};  // holds the gradient gathered by SP
  };
  // `bias` may be null. `tp` must outlive the layer and its backward. Throws Error(kRefused) when
  // each rank would add the bias before the caller sums.
  RowParallelLinear(ParameterPtr weight, ParameterPtr bias, Communicator& tp, Options options);
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  std::vector<ParameterPtr> parameters() const override;

 private:
  at::Tensor own_features(const at::Tensor& x) const;
  at::Tensor sum(const at::Tensor& addend) const;

  ParameterPtr weight_, bias_;
  Communicator& tp_;
  Options options_;
};

}  // namespace shardproof
