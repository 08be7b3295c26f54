// A layer around another one, which keeps the parameters and ends the backward. The layer that
// derives from it computes.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "model/slot.h"

namespace shardproof {

class WrappedLayer : public Layer {
 public:
  explicit WrappedLayer(std::unique_ptr<Layer> inner) : inner_(std::move(inner)) {}
  std::vector<ParameterPtr> parameters() const override { return inner_->parameters(); }
  void finish_backward() override { inner_->finish_backward(); }
  void drop_backward() override { inner_->drop_backward(); }

 protected:
  std::unique_ptr<Layer> inner_;
};

}  // namespace shardproof
