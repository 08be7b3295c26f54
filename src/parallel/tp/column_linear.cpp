#include "parallel/tp/column_linear.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "collective/equal_parts.h"
#include "collective/mappings.h"
#include "parallel/tp/async_linear.h"

namespace shardproof {
namespace {

std::vector<int64_t> output_blocks(const ColumnLinear::Options& options, const Communicator& tp) {
  divide(options.output_size, tp, "output_size");
  if (options.blocks.empty()) {
    return equal_blocks(options.output_size, options.stride, "output_size");
  }
  int64_t sum = 0;
  for (const int64_t block : options.blocks) sum += block;
  if (options.stride != 1 || sum != options.output_size) {
    throw Error(
        {.kind = ErrorKind::kRefused,
         .what = fmt::format("'{}': blocks [{}] for output_size={} and stride={}", options.label,
                             fmt::join(options.blocks, ","), options.output_size, options.stride),
         .fix = "give a stride, or blocks that come to output_size"});
  }
  return options.blocks;
}

void check_external_weight(const at::Tensor& weight, const std::vector<int64_t>& shape,
                           const std::string& label) {
  if (weight.sizes().vec() == shape) return;
  throw Error({.kind = ErrorKind::kBadInput,
               .what = fmt::format("'{}' was given a weight of shape [{}], not [{}]", label,
                                   fmt::join(weight.sizes(), ","), fmt::join(shape, ",")),
               .fix = "give this rank's rows of the weight"});
}

}  // namespace

ColumnLinear::ColumnLinear(Options options, Communicator& tp)
    : options_(std::move(options)),
      tp_(tp),
      blocks_(output_blocks(options_, tp)),
      silent_(options_.expert && (tp.size() > 1 || options_.expert_parallel)),
      sequence_parallel_(options_.sequence_parallel && tp.size() > 1 && !silent_) {
  const bool averaged = !(options_.expert && options_.expert_parallel);
  if (!options_.external_weight) {
    weight_ = make_layer_parameter({.name = "weight",
                                    .global_shape = {options_.output_size, options_.input_size},
                                    .dim = 0,
                                    .blocks = blocks_,
                                    .dtype = options_.dtype,
                                    .init = options_.init,
                                    .from = options_.init_from,
                                    .keep_master = options_.keep_master,
                                    .main_gradient = options_.main_gradient},
                                   tp);
    weight_->allreduce = averaged;
    weight_->tensor.requires_grad_(!options_.frozen);
  }
  if (options_.bias) {
    bias_ = make_layer_parameter({.name = "bias",
                                  .global_shape = {options_.output_size},
                                  .dim = 0,
                                  .blocks = blocks_,
                                  .dtype = options_.dtype},
                                 tp);
    bias_->allreduce = averaged;
  }
}

LinearOutput ColumnLinear::forward(const at::Tensor& x, const Call& call) {
  const bool own = !call.weight.defined();
  if (own && !weight_) {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = fmt::format("'{}' has no weight of its own and was called without one",
                                     options_.label),
                 .fix = "give the weight with the call"});
  }
  if (!own) {
    check_external_weight(call.weight, {options_.output_size / tp_.size(), options_.input_size},
                          options_.label);
  }
  const at::Tensor bias = bias_ ? bias_->tensor : at::Tensor();
  const at::Tensor y =
      product(x, own ? weight_->tensor : call.weight, options_.skip_bias_add ? at::Tensor() : bias,
              own ? weight_->main_gradient : call.main_gradient);
  LinearOutput result{y, options_.skip_bias_add ? bias : at::Tensor()};
  if (call.gather_output.value_or(options_.gather_output)) {
    const at::Tensor by_rank = all_gather_with_slice_backward(y, tp_, -1, options_.label);
    result.output = in_full_order(by_rank, -1, blocks_, tp_.size());
  }
  return result;
}

at::Tensor ColumnLinear::product(const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& bias,
                                 const std::shared_ptr<MainGradient>& main_gradient) {
  const AsyncLinearOptions linear{
      .label = options_.label,
      .reduce_input_gradient = !silent_ && !sequence_parallel_ && !options_.disable_grad_reduce,
      .sequence_parallel = sequence_parallel_,
      .sequence_dim = options_.sequence_dim,
      .gather_buffer = options_.gather_buffer,
      .main_gradient = main_gradient,
      .deferred = options_.deferred};
  return weight.requires_grad() ? async_linear(x, weight, bias, tp_, linear)
                                : frozen_linear(x, weight, bias, tp_, linear);
}

ShardedState ColumnLinear::sharded_state(const StateKey& key) const {
  ShardedState state;
  if (weight_) append_sharded(state, *weight_, key, tp_);
  if (bias_) append_sharded(state, *bias_, key, tp_);
  return state;
}

void ColumnLinear::load(const ShardedState& saved, const StateKey& key) {
  if (weight_) load_sharded(saved, *weight_, key, tp_);
  if (bias_) load_sharded(saved, *bias_, key, tp_);
}

}  // namespace shardproof
