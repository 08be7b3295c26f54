// A part of the model with one input and one output tensor. Activation checkpointing and units of
// fsdp are wrapped around it from outside.
//
//   chunk.<c>               the input of chunk c -> its output (decoder.h)
//   model                   another name of chunk.0: without a pipeline input_ids -> logits
//   model.layers.<i>        the residual stream before a layer -> after it
//   model.layers.<i>.mlp    the input of the layer's MLP -> its output
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "model/slot.h"

namespace shardproof {

// The computation of a region. A copy may be kept and run again while the model and the objects
// behind the context exist.
using RegionBody = std::function<at::Tensor(const at::Tensor& x, const StepContext& context)>;

class KeptActivation;  // random/checkpoint.h

class RegionWrap {
 public:
  virtual ~RegionWrap() = default;
  // Calls `body` once with `x` or an alias of it. The gradients of x and of the parameters must be
  // those of the body.
  virtual at::Tensor run(const at::Tensor& x, const StepContext& context,
                         const RegionBody& body) = 0;
};

class Region {
 public:
  // Each new wrap goes around the earlier ones.
  void wrap(std::unique_ptr<RegionWrap> wrap) { wraps_.push_back(std::move(wrap)); }
  at::Tensor run(const at::Tensor& x, const StepContext& context, const RegionBody& body) const {
    RegionBody outermost = body;
    for (const auto& wrap : wraps_) {
      outermost = [around = wrap.get(), inner = std::move(outermost)](const at::Tensor& input,
                                                                      const StepContext& step) {
        return around->run(input, step, inner);
      };
    }
    return outermost(x, context);
  }
  // How activation checkpointing keeps the region's input; null: as it is.
  void keep_input(std::shared_ptr<KeptActivation> kept) { kept_input_ = std::move(kept); }
  const std::shared_ptr<KeptActivation>& kept_input() const { return kept_input_; }

 private:
  std::vector<std::unique_ptr<RegionWrap>> wraps_;
  std::shared_ptr<KeptActivation> kept_input_;
};

}  // namespace shardproof
