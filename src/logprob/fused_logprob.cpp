#include "logprob/fused_logprob.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "collective/mappings.h"
#include "logprob/row_softmax.h"
#include "tensor/function.h"

namespace shardproof {
namespace {

// With fewer rows a matrix product reads all of `weight` for little work.
constexpr int64_t kFewestRows = 64;

// The output layer, cut to the counted columns, and its input rows.
struct OutputLayer {
  at::Tensor rows;    // [R, E]
  at::Tensor weight;  // [counted, E]
  at::Tensor bias;    // [counted], or undefined
  int64_t block_rows;

  OutputLayer(const at::Tensor& hidden, const at::Tensor& full_weight, const at::Tensor& full_bias,
              const VocabShard& shard)
      : rows(hidden.reshape({-1, hidden.size(-1)})),
        weight(full_weight.narrow(0, 0, shard.range.counted)),
        bias(full_bias.numel() > 0 ? full_bias.narrow(0, 0, shard.range.counted) : at::Tensor()),
        block_rows(
            shard.block_rows > 0
                ? shard.block_rows
                : std::max(kFewestRows, rows_per_block(shard.range.counted,
                                                       logprob_type(hidden.scalar_type()), 0))) {}

  int64_t count_at(int64_t first) const { return std::min(block_rows, rows.size(0) - first); }
  at::Tensor logits(int64_t first) const {
    const at::Tensor out = rows.narrow(0, first, count_at(first)).mm(weight.t());
    return bias.defined() ? out + bias : out;
  }
};

struct Gradients {
  at::Tensor hidden, weight, bias;
};

Gradients layer_gradients(const OutputLayer& layer, LogprobGradient gradient, int64_t counted) {
  const at::TensorOptions wide = layer.rows.options().dtype(logprob_type(layer.rows.scalar_type()));
  const at::ScalarType narrow = layer.rows.scalar_type();
  Gradients out{.hidden = at::empty_like(layer.rows),
                .weight = at::zeros({counted, layer.rows.size(1)}, wide),
                .bias = layer.bias.defined() ? at::zeros({counted}, wide) : at::Tensor()};
  for (int64_t first = 0; first < layer.rows.size(0); first += layer.block_rows) {
    const int64_t count = layer.count_at(first);
    const at::Tensor grad_logits = gradient.block(first, layer.logits(first));
    const at::Tensor rows = layer.rows.narrow(0, first, count);
    out.hidden.narrow(0, first, count).copy_(grad_logits.to(narrow).mm(layer.weight));
    out.weight.addmm_(grad_logits.t(), rows.to(wide));
    if (out.bias.defined()) out.bias.add_(grad_logits.sum(0));
  }
  return out;
}

at::Tensor with_padding(const at::Tensor& counted, int64_t columns, at::ScalarType dtype) {
  if (!counted.defined()) return counted;
  std::vector<int64_t> pad(static_cast<size_t>(counted.dim()) * 2, 0);
  pad.back() = columns - counted.size(0);
  return at::constant_pad_nd(counted, pad, 0).to(dtype);
}

struct FusedFunction : Function<FusedFunction> {
  static at::Tensor forward(FunctionContext* ctx, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const at::Tensor& target, const VocabShard& shard) {
    const OutputLayer layer(hidden, weight, bias, shard);
    const LocalTarget local = LocalTarget::of(target.reshape({-1}), shard.range);
    RowSoftmax softmax(target.numel(), shard,
                       hidden.options().dtype(logprob_type(hidden.scalar_type())));
    for (int64_t first = 0; first < layer.rows.size(0); first += layer.block_rows) {
      softmax.add(first, layer.logits(first), local);
    }
    const at::Tensor logprob = softmax.reduce(local).view(target.sizes());
    ctx->save_for_backward(
        {hidden, weight, bias, softmax.max(), softmax.sum(), local.column, local.owned});
    shard.save(*ctx);
    return logprob;
  }

  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    SHARDPROOF_ASSERT(!at::GradMode::is_enabled(), "the logprob has no second derivative");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& hidden = saved[0];
    const at::Tensor& weight = saved[1];
    const VocabShard shard = VocabShard::load(*ctx, weight.size(0));
    const OutputLayer layer(hidden, weight, saved[2], shard);
    const Gradients out = layer_gradients(
        layer,
        LogprobGradient(shard, saved[3], saved[4], {.column = saved[5], .owned = saved[6]},
                        grads[0].reshape({-1})),
        shard.range.counted);
    return {out.hidden.view(hidden.sizes()),
            with_padding(out.weight, weight.size(0), weight.scalar_type()),
            with_padding(out.bias, weight.size(0), weight.scalar_type()), at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor fused_vocab_parallel_logprob(const at::Tensor& hidden, const at::Tensor& weight,
                                        const at::Tensor& bias, const at::Tensor& target,
                                        Communicator& tp, int64_t vocab_size,
                                        const LogprobOptions& options) {
  SHARDPROOF_ASSERT(
      hidden.sizes().slice(0, static_cast<size_t>(hidden.dim()) - 1) == target.sizes(),
      "one target per row of hidden states");
  check_targets(target, vocab_size);
  const VocabShard shard = VocabShard::of(weight.size(0), vocab_size, tp, options);
  // An autograd function takes no undefined tensor, so an empty tensor stands for no bias.
  const at::Tensor given_bias = bias.defined() ? bias : at::empty({0}, weight.options());
  if (keeps_nothing(options)) {
    const at::NoGradGuard no_grad;
    return FusedFunction::apply(hidden.detach(), weight.detach(), given_bias.detach(), target,
                                shard);
  }
  const at::Tensor entered =
      shard.tp == nullptr ? hidden
                          : copy_with_all_reduce_backward(hidden, tp, options.label + " hidden");
  return FusedFunction::apply(entered, weight, given_bias, target, shard);
}

}  // namespace shardproof
