// A split backward: gradients of linears' matrices that are computed later than all others.
//
//   B   gradients of the inputs, biases, norms and embeddings; each linear leaves (x, grad_y)
//   W   grad_W = grad_y^T x of what one microbatch left in one chunk; frees it
//
// The product is autograd's own, of the same tensors. A matrix that several linears use gets the
// sum of their products in the order of the backward, so that B and W leave the bits of a backward
// that is not split. Matrices of routers and experts stay in B.
//
// Sources: arXiv 2401.10241 (zero bubble), section 2; pytorch/pytorch
// torch/distributed/pipelining/_backward.py, stage_backward_input and stage_backward_weight.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "model/slot.h"

namespace shardproof {

class OpenWeights {
 public:
  struct Product {
    ParameterPtr weight;     // [F, E]
    at::Tensor input;        // [.., E], or what `whole_input` takes
    at::Tensor grad_output;  // [.., F]
    // Makes the input of the product, by a collective if need be; empty: it is there.
    std::function<at::Tensor(const at::Tensor&)> whole_input = {};
  };
  void add(int64_t chunk, int64_t microbatch, Product product);
  // Adds the gradients to the matrices' main gradients, or to their .grad, and frees the products.
  void finish(int64_t chunk, int64_t microbatch);
  void drop() { products_.clear(); }
  bool empty() const { return products_.empty(); }

 private:
  // By chunk and microbatch, in the order of the backward.
  std::map<std::pair<int64_t, int64_t>, std::vector<Product>> products_;
};

// Leaves a product of `weight` for later; empty where the backward computes it: it is not split, or
// the weight is not trained.
using LeaveProduct = std::function<void(const at::Tensor& input, const at::Tensor& grad_output,
                                        std::function<at::Tensor(const at::Tensor&)> whole_input)>;
LeaveProduct leave_product(const ParameterPtr& weight, const StepContext& context);

// y = x W^T + b of a linear that communicates nothing. The gradient of W goes where the context and
// the weight say: to .grad, to the main gradient, or to context.open_weights. `bias` may be
// undefined.
at::Tensor apply_linear(const at::Tensor& x, const ParameterPtr& weight, const at::Tensor& bias,
                        const StepContext& context);

}  // namespace shardproof
