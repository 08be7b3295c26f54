// A layer that every tp rank computes in full, beside a residual stream cut along the sequence.
//
//   opens a region    x [B, S_tp, E], all_gather to [B, S, E], the layer
//                     backward: the gradient of the whole x, equal on all ranks, is sliced
//   closes a region   the layer, y [B, S, E], sliced to [B, S_tp, E]
//                     backward: all_gather
//
// The layer's parameters get their whole gradient on every rank.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "model/slot.h"

namespace shardproof {

class WholeLayer : public Layer {
 public:
  enum class Place { kOpensRegion, kClosesRegion };
  // `tp` must outlive the layer and its backward.
  WholeLayer(std::unique_ptr<Layer> layer, Place place, Communicator& tp, std::string label)
      : layer_(std::move(layer)), place_(place), tp_(tp), label_(std::move(label)) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  std::vector<ParameterPtr> parameters() const override { return layer_->parameters(); }

 private:
  std::unique_ptr<Layer> layer_;
  Place place_;
  Communicator& tp_;
  std::string label_;
};

}  // namespace shardproof
