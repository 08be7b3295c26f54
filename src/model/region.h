// A stretch of the model, one tensor in and one out, around which something may be put from
// outside: activation checkpointing, a unit of fsdp.
//
//   model                   input_ids -> logits
//   model.layers.<i>        the residual stream before a layer -> after it
//   model.layers.<i>.mlp    what the layer's MLP reads -> what it adds
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "model/slot.h"

namespace shardproof {

// What a region computes. A copy may be kept and run again, as long as the model and what the
// context points to live.
using RegionBody = std::function<at::Tensor(const at::Tensor& x, const StepContext& context)>;

class RegionWrap {
 public:
  virtual ~RegionWrap() = default;
  // Calls `body` once, with `x` or an alias of it; the gradient of x and of the parameters is that
  // of the body.
  virtual at::Tensor run(const at::Tensor& x, const StepContext& context,
                         const RegionBody& body) = 0;
};

class Region {
 public:
  // What comes later goes around what is there already.
  void wrap(std::unique_ptr<RegionWrap> wrap) { wraps_.push_back(std::move(wrap)); }
  at::Tensor run(const at::Tensor& x, const StepContext& context, const RegionBody& body) const;

 private:
  std::vector<std::unique_ptr<RegionWrap>> wraps_;
};

}  // namespace shardproof
