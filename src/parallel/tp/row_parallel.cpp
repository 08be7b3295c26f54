#include "parallel/tp/row_parallel.h"

#include <ATen/ATen.h>

#include "collective/mappings.h"

namespace shardproof {

at::Tensor RowParallelLinear::forward(at::TensorList inputs, const StepContext&) {
  const at::Tensor x = options_.input_is_parallel
                           ? inputs[0]
                           : slice_with_all_gather_backward(inputs[0], tp_, -1, options_.label,
                                                            options_.input_parts);
  const at::Tensor addend = at::linear(x, weight_->tensor);
  const at::Tensor y = options_.sequence_parallel
                           ? reduce_scatter_with_all_gather_backward(addend, tp_, 1, options_.label)
                           : all_reduce_with_identity_backward(addend, tp_, options_.label);
  return bias_ ? y + bias_->tensor : y;
}

std::vector<ParameterPtr> RowParallelLinear::parameters() const {
  if (!bias_) return {weight_};
  return {weight_, bias_};
}

}  // namespace shardproof
