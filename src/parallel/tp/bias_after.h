// A linear that leaves its bias to its caller (skip_bias_add), with the caller's sum.
//
//   forward    y = linear(x) + b         the bias once, after the linear's collectives
//   backward   grad_b, of this rank's features or tokens
//
// Source: Megatron-LM layers.py, skip_bias_add, and fused_bias_dropout.py, which adds the bias.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "model/wrapped_layer.h"

namespace shardproof {

class BiasAfter : public WrappedLayer {
 public:
  // `linear` must have the bias among its parameters, but not add it; its output has the bias's
  // features.
  BiasAfter(std::unique_ptr<Layer> linear, ParameterPtr bias)
      : WrappedLayer(std::move(linear)), bias_(std::move(bias)) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;

 private:
  ParameterPtr bias_;
};

}  // namespace shardproof
