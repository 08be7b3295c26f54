// A linear layer whose weight rows (output features) are cut over tp.
//
//   forward    x [B, S, E]            (SP: [B, S_tp, E], all_gather over the sequence)
//              y = x W_tp^T + b_tp    [B, S, F_tp]     (gathered: all_gather to [B, S, F])
//   backward   grad_x [B, S, E] {U_tp}  all_reduce     (SP: reduce_scatter to [B, S_tp, E])
//
// Each rank computes other features of the same x, so each holds an addend of its gradient. All
// ranks repeat the computation on a gathered y, so its gradient is sliced, not summed. With several
// blocks a rank holds its part of each (gate and up), and a gathered y is in the order of the full
// layer. (Megatron-LM leaves it in rank order, which depends on tp.)
//
// async_linear.h computes the product if async_grad, a main gradient of the weight or a deferral is
// configured. A frozen weight does not stop the gradients of the input and the bias.
//
// Legend: B batch, S sequence, E in, F out; S_tp, F_tp this rank's part.
// Source: Megatron-LM layers.py, ColumnParallelLinear; NeMo-RL parallelize.py, ColwiseParallel.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collective/gather_buffer.h"
#include "comm/communicator.h"
#include "model/slot.h"
#include "parallel/tp/deferred_gradients.h"

namespace shardproof {

class ColumnParallelLinear : public Layer {
 public:
  struct Options {
    std::string label;               // of the collectives: the slot's name
    bool sequence_parallel = false;  // x is this rank's part of the sequence
    bool gather_output = false;
    std::vector<int64_t> output_parts = {};  // gather_output: features of each tp rank
    std::vector<int64_t> blocks = {};        // of a fused output, each cut evenly; empty: one block
    bool skip_bias_add = false;              // the caller adds the bias
    // x is already gathered, and its gradient stays this rank's addend: for an expert, whose
    // dispatcher communicates, or for several layers whose caller sums once.
    bool caller_communicates = false;
    bool async_grad = false;  // reduces the gradient of x while that of the weight is computed
    std::shared_ptr<GatherBuffer> gather_buffer = {};  // holds the x gathered by SP; may be null
    std::shared_ptr<DeferredWeightGradients> deferred = {};  // null: the backward computes it
  };
  // `bias` may be null. `tp` must outlive the layer and its backward.
  ColumnParallelLinear(ParameterPtr weight, ParameterPtr bias, Communicator& tp, Options options)
      : weight_(std::move(weight)), bias_(std::move(bias)), tp_(tp), options_(std::move(options)) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  std::vector<ParameterPtr> parameters() const override;
  // Computes or drops the weight gradients that `deferred` holds.
  void finish_backward() override;
  void drop_backward() override;
  // Takes effect with the next call.
  void set_gather_output(bool gathers) { options_.gather_output = gathers; }

 private:
  at::Tensor product(const at::Tensor& x, const StepContext& context) const;
  at::Tensor async_product(const at::Tensor& x, const at::Tensor& bias,
                           const StepContext& context) const;
  at::Tensor entering(const at::Tensor& x) const;

  ParameterPtr weight_, bias_;
  Communicator& tp_;
  Options options_;
};

}  // namespace shardproof
