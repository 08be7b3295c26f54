// Weight gradients of one weight that are computed later, all at once: those of the output
// embedding, while a pipeline waits.
//
// A product keeps its input and its gradient together, so the order of the backwards does not
// matter. (Megatron-LM keeps two lists, inputs in forward and gradients in backward order, and
// pairs them by position: that is right only when backwards run in the order of the forwards.)
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

// A weight gradient grad^T x that a backward has not computed.
struct DeferredProduct {
  at::Tensor input;        // as saved: with sequence_dim >= 0, this rank's part of the sequence
  at::Tensor grad_output;  // [.., F]
  int64_t sequence_dim = -1;
};

// Keeps at most `limit` products (0: all). The backwards of further microbatches compute theirs.
class DeferredWeightGradients {
 public:
  explicit DeferredWeightGradients(int64_t limit = 0) : limit_(limit) {}
  bool has_room() const { return limit_ == 0 || count() < limit_; }
  int64_t count() const { return static_cast<int64_t>(products_.size()); }
  void add(DeferredProduct product) { products_.push_back(std::move(product)); }
  void drop() { products_.clear(); }
  // Computes and drops all products. Adds them to `gradient`, or to weight.grad if that is null:
  // there the sum is in the wider type and rounded once. The input of a sequence-parallel product
  // is first gathered over `tp`, in the order of the backwards.
  void finish(const at::Tensor& weight, MainGradient* gradient, Communicator& tp,
              const std::string& label);

 private:
  int64_t limit_;
  std::vector<DeferredProduct> products_;
};

}  // namespace shardproof
