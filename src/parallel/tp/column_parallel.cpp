#include "parallel/tp/column_parallel.h"

#include <ATen/ATen.h>

#include "collective/mappings.h"

namespace shardproof {

at::Tensor ColumnParallelLinear::forward(at::TensorList inputs, const StepContext&) {
  const at::Tensor x =
      options_.sequence_parallel
          ? all_gather_with_reduce_scatter_backward(inputs[0], tp_, 1, options_.label)
          : copy_with_all_reduce_backward(inputs[0], tp_, options_.label);
  const at::Tensor y = at::linear(x, weight_->tensor, bias_ ? bias_->tensor : at::Tensor());
  if (!options_.gather_output) return y;
  return all_gather_with_slice_backward(y, tp_, -1, options_.label, options_.output_parts);
}

std::vector<ParameterPtr> ColumnParallelLinear::parameters() const {
  if (!bias_) return {weight_};
  return {weight_, bias_};
}

}  // namespace shardproof
