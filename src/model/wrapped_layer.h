// A layer around another one, which keeps the parameters and ends the backward. The layer that
// derives from it computes, or a function that wrap_layer is given.
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

// Puts a layer around the slot's one whose output is `forward(inner, inputs, context)`.
template <class Forward>
void wrap_layer(Slot& slot, Forward forward) {
  class Wrapped : public WrappedLayer {
   public:
    Wrapped(std::unique_ptr<Layer> inner, Forward forward)
        : WrappedLayer(std::move(inner)), forward_(std::move(forward)) {}
    at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
      return forward_(*inner_, inputs, context);
    }

   private:
    Forward forward_;
  };
  slot.layer = std::make_unique<Wrapped>(std::move(slot.layer), std::move(forward));
}

}  // namespace shardproof
