#include "parallel/tp/column_parallel.h"

#include <ATen/ATen.h>

#include "collective/mappings.h"
#include "model/open_weights.h"
#include "parallel/tp/async_linear.h"
#include "parallel/tp/blocks.h"

namespace shardproof {

at::Tensor ColumnParallelLinear::forward(at::TensorList inputs, const StepContext& context) {
  const at::Tensor y = product(inputs[0], context);
  if (!options_.gather_output) return y;
  const at::Tensor by_rank =
      all_gather_with_slice_backward(y, tp_, -1, options_.label, options_.output_parts);
  return in_full_order(by_rank, -1, options_.blocks, tp_.size());
}

at::Tensor ColumnParallelLinear::product(const at::Tensor& x, const StepContext& context) const {
  const at::Tensor bias = bias_ && !options_.skip_bias_add ? bias_->tensor : at::Tensor();
  if (options_.async_grad || weight_->main_gradient || options_.deferred) {
    return async_product(x, bias, context);
  }
  return apply_linear(entering(x), weight_, bias, context);
}

at::Tensor ColumnParallelLinear::async_product(const at::Tensor& x, const at::Tensor& bias,
                                               const StepContext& context) const {
  const bool gathers = options_.sequence_parallel && !options_.caller_communicates;
  const bool trains = weight_->tensor.requires_grad();
  const AsyncLinearOptions linear{
      .label = options_.label,
      .reduce_input_gradient = !gathers && !options_.caller_communicates,
      .sequence_parallel = gathers,
      .sequence_dim = 1,
      .gather_buffer = options_.gather_buffer.get(),
      .main_gradient = weight_->main_gradient,
      .deferred = trains ? options_.deferred : nullptr,
      .leave = leave_product(weight_, context)};
  return trains ? async_linear(x, weight_->tensor, bias, tp_, linear)
                : frozen_linear(x, weight_->tensor, bias, tp_, linear);
}

// The whole x; its backward sums the gradient over tp.
at::Tensor ColumnParallelLinear::entering(const at::Tensor& x) const {
  if (options_.caller_communicates) return x;
  return options_.sequence_parallel
             ? all_gather_with_reduce_scatter_backward(x, tp_, 1, options_.label, {},
                                                       options_.gather_buffer.get())
             : copy_with_all_reduce_backward(x, tp_, options_.label);
}

void ColumnParallelLinear::finish_backward() {
  if (!options_.deferred || options_.deferred->count() == 0) return;
  options_.deferred->finish(weight_->tensor, weight_->main_gradient.get(), tp_, options_.label);
}

void ColumnParallelLinear::drop_backward() {
  if (options_.deferred) options_.deferred->drop();
}

std::vector<ParameterPtr> ColumnParallelLinear::parameters() const {
  if (!bias_) return {weight_};
  return {weight_, bias_};
}

}  // namespace shardproof
