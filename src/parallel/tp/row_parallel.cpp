#include "parallel/tp/row_parallel.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "collective/mappings.h"
#include "model/open_weights.h"
#include "parallel/tp/blocks.h"

namespace shardproof {

RowParallelLinear::RowParallelLinear(ParameterPtr weight, ParameterPtr bias, Communicator& tp,
                                     Options options)
    : weight_(std::move(weight)), bias_(std::move(bias)), tp_(tp), options_(std::move(options)) {
  if (!options_.caller_communicates || !bias_ || options_.skip_bias_add) return;
  throw_refused(fmt::format("'{}' adds its bias before the caller sums over {} ranks",
                            options_.label, tp_.size()),
                "leave the bias out, or add it after the sum");
}

at::Tensor RowParallelLinear::forward(at::TensorList inputs, const StepContext& context) {
  const at::Tensor addend = apply_linear(own_features(inputs[0]), weight_, {}, context);
  const at::Tensor y = options_.caller_communicates ? addend : sum(addend);
  return bias_ && !options_.skip_bias_add ? y + bias_->tensor : y;
}

at::Tensor RowParallelLinear::own_features(const at::Tensor& x) const {
  if (options_.input_is_parallel) return x;
  return slice_with_all_gather_backward(in_rank_order(x, -1, options_.blocks, tp_.size()), tp_, -1,
                                        options_.label, options_.input_parts);
}

at::Tensor RowParallelLinear::sum(const at::Tensor& addend) const {
  return options_.sequence_parallel
             ? reduce_scatter_with_all_gather_backward(addend, tp_, 1, options_.label, {},
                                                       options_.gather_buffer.get())
             : all_reduce_with_identity_backward(addend, tp_, options_.label);
}

std::vector<ParameterPtr> RowParallelLinear::parameters() const {
  if (!bias_) return {weight_};
  return {weight_, bias_};
}

}  // namespace shardproof
