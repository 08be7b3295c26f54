// Where a weight's gradient goes beside autograd: a wide buffer that every backward adds to.
//
//   microbatch 1   sum += g1^T x1     one product into the buffer, no gradient of the weight's
//   dtype microbatch 2   sum += g2^T x2     is made in between
//
// Who finishes a backward (a hook of the data-parallel buckets) has to know what is in the buffer
// already. `wants_dummy` (Megatron-LM: the weight has a grad_added_to_main_grad mark): the backward
// returns a stand-in, so that hooks fire, and sets `added`. The stand-in is zeros where
// `zero_dummy` (a weight that another path gives a real gradient: both arrive in .grad as one sum),
// else NaN, so that a hook which adds it by mistake is seen (Megatron-LM leaves it uninitialized).
//
// Source: Megatron-LM layers.py, LinearWithGradAccumulationAndAsyncCommunication.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace shardproof {

struct MainGradient {
  at::Tensor sum;  // of the weight's shape: float32, float64 for a float64 weight; or narrower
  bool wants_dummy = false;
  bool zero_dummy = false;
  bool added = false;  // the last backward added to `sum`: .grad is a stand-in
};

// What a hook does after a backward: what is in .grad and not yet in the buffer is added to it,
// .grad is released and `added` is reset.
void finish_main_gradient(const at::Tensor& weight, MainGradient& gradient);

// A product that a backward left undone: its weight gradient grad^T x.
struct DeferredProduct {
  at::Tensor input;        // as saved: this rank's part of the sequence where sequence_dim >= 0
  at::Tensor grad_output;  // [.., F]
  int64_t sequence_dim = -1;
};

// The weight gradients of one weight that are computed later, all at once: of the output embedding,
// while a pipeline waits. At most `limit` products are kept (0: all); the backward of further
// microbatches computes its product at once, as if there were no list.
//
// Input and gradient are kept together, so that the order of the backwards does not matter. (The
// seed appends inputs in forward order and gradients in backward order to two lists and pairs them
// by position: right only when microbatches go back in the order in which they came.)
class DeferredWeightGradients {
 public:
  explicit DeferredWeightGradients(int64_t limit = 0) : limit_(limit) {}
  bool has_room() const { return limit_ == 0 || count() < limit_; }
  int64_t count() const { return static_cast<int64_t>(products_.size()); }
  void add(DeferredProduct product) { products_.push_back(std::move(product)); }
  // Computes what is kept and forgets it: into the buffer, without one (null) into weight.grad,
  // summed in the wider type and rounded once.
  // Products of a sequence-parallel input gather it over `tp` first, in the order of the backwards.
  void finish(const at::Tensor& weight, MainGradient* gradient, Communicator& tp,
              const std::string& label);

 private:
  int64_t limit_;
  std::vector<DeferredProduct> products_;
};

// sum += grad^T x over all leading dims, accumulated in sum's dtype.
void add_weight_gradient(const at::Tensor& sum, const at::Tensor& grad_output,
                         const at::Tensor& input);

}  // namespace shardproof
