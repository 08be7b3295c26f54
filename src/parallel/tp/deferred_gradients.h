// The weight gradients of one weight that are computed later, all at once: of the output embedding,
// while a pipeline waits.
//
// Input and gradient of a product are kept together, so that the order of the backwards does not
// matter. (Megatron-LM appends inputs in forward order and gradients in backward order to two lists
// and pairs them by position: right only when microbatches go back in the order in which they
// came.)
//
// Source: Megatron-LM layers.py, deferral_embedding_inputs and wgrad_deferral_limit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "model/main_gradient.h"

namespace shardproof {

// A product that a backward left undone: its weight gradient grad^T x.
struct DeferredProduct {
  at::Tensor input;        // as saved: this rank's part of the sequence where sequence_dim >= 0
  at::Tensor grad_output;  // [.., F]
  int64_t sequence_dim = -1;
};

// At most `limit` products are kept (0: all); the backward of further microbatches computes its
// product at once, as if there were no list.
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

}  // namespace shardproof
