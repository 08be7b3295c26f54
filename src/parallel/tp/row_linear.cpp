#include "parallel/tp/row_linear.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "collective/equal_parts.h"
#include "collective/mappings.h"
#include "parallel/tp/async_linear.h"

namespace shardproof {
namespace {

RowLinear::Options checked(RowLinear::Options options, const Communicator& tp) {
  divide(options.input_size, tp, "input_size");
  if (options.sequence_parallel && !options.input_is_parallel) {
    throw Error({.kind = ErrorKind::kRefused,
                 .what = fmt::format("'{}' has sequence_parallel without input_is_parallel: its "
                                     "output would be cut where its input is whole",
                                     options.label),
                 .fix = "set input_is_parallel, or turn sequence_parallel off"});
  }
  const bool silent = options.expert && (tp.size() > 1 || options.expert_parallel);
  if (silent && options.bias && !options.skip_bias_add) {
    throw Error({.kind = ErrorKind::kRefused,
                 .what = fmt::format("'{}' is an expert's and adds its bias before the dispatcher "
                                     "sums over {} ranks",
                                     options.label, tp.size()),
                 .fix = "set skip_bias_add and add the bias after the sum, or leave it out"});
  }
  return options;
}

ParameterSpec weight_spec(const RowLinear::Options& options) {
  return {.name = "weight",
          .global_shape = {options.output_size, options.input_size},
          .dim = 1,
          .blocks = equal_blocks(options.input_size, options.stride, "input_size"),
          .dtype = options.dtype,
          .init = options.init,
          .from = options.init_from,
          .keep_master = options.keep_master,
          .main_gradient = options.main_gradient};
}

}  // namespace

RowLinear::RowLinear(Options options, Communicator& tp)
    : options_(checked(std::move(options), tp)),
      tp_(tp),
      silent_(options_.expert && (tp.size() > 1 || options_.expert_parallel)),
      sequence_parallel_(options_.sequence_parallel && tp.size() > 1 && !silent_),
      weight_(make_layer_parameter(weight_spec(options_), tp)) {
  weight_.allreduce = !(options_.expert && options_.expert_parallel);
  weight_.tensor.requires_grad_(!options_.frozen);
  if (!options_.bias) return;
  bias_ = make_layer_parameter(
      {.name = "bias", .global_shape = {options_.output_size}, .dtype = options_.dtype}, tp);
  bias_->allreduce = weight_.allreduce;
  bias_->sequence_parallel = sequence_parallel_;
}

LinearOutput RowLinear::forward(const at::Tensor& x) {
  const at::Tensor part =
      options_.input_is_parallel
          ? x
          : slice_with_all_gather_backward(in_rank_order(x, -1, weight_.blocks, tp_.size()), tp_,
                                           -1, options_.label);
  const AsyncLinearOptions linear{.label = options_.label, .main_gradient = weight_.main_gradient};
  const at::Tensor addend = options_.frozen ? frozen_linear(part, weight_.tensor, {}, tp_, linear)
                                            : async_linear(part, weight_.tensor, {}, tp_, linear);
  const at::Tensor y = silent_ ? addend : sum(addend);
  const at::Tensor bias = bias_ ? bias_->tensor : at::Tensor();
  if (options_.skip_bias_add) return {y, bias};
  return {bias.defined() ? y + bias : y, {}};
}

at::Tensor RowLinear::sum(const at::Tensor& addend) {
  return sequence_parallel_
             ? reduce_scatter_with_all_gather_backward(addend, tp_, options_.sequence_dim,
                                                       options_.label, {}, options_.gather_buffer)
             : all_reduce_with_identity_backward(addend, tp_, options_.label);
}

ShardedState RowLinear::sharded_state(const StateKey& key) const {
  ShardedState state;
  append_sharded(state, weight_, key, tp_);
  if (bias_) append_sharded(state, *bias_, key, tp_);
  return state;
}

void RowLinear::load(const ShardedState& saved, const StateKey& key) {
  load_sharded(saved, weight_, key, tp_);
  if (bias_) load_sharded(saved, *bias_, key, tp_);
}

}  // namespace shardproof
