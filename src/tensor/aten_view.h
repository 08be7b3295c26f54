// Between TensorView and LibTorch's tensors, over the same memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "tensor/tensor_view.h"

namespace shardproof {

std::optional<Dtype> dtype_of(at::ScalarType type);  // nothing for a type that Dtype lacks

// An undefined tensor gives an undefined view. A tensor on a device or with other strides is
// copied. Throws InternalError for a type that Dtype lacks.
TensorView view_of(const at::Tensor& tensor);
// Do not write to it.
at::Tensor tensor_of(const TensorView& view);

}  // namespace shardproof
