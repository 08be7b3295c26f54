#include "parallel/tp/whole_layer.h"

#include <ATen/ATen.h>

#include "collective/mappings.h"

namespace shardproof {

at::Tensor WholeLayer::forward(at::TensorList inputs, const StepContext& context) {
  if (place_ == Place::kOpensRegion) {
    return layer_->forward({all_gather_with_slice_backward(inputs[0], tp_, 1, label_)}, context);
  }
  return slice_with_all_gather_backward(layer_->forward(inputs, context), tp_, 1, label_);
}

}  // namespace shardproof
