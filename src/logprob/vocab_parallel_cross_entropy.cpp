#include "logprob/vocab_parallel_cross_entropy.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "logprob/row_softmax.h"
#include "tensor/function.h"

namespace shardproof {
namespace {

// The share of the mean over the vocabulary in the loss.
double mean_share(double label_smoothing, int64_t vocab_size) {
  if (!(label_smoothing >= 0 && label_smoothing < 1)) {
    throw_bad_input(fmt::format("a label smoothing of {}", label_smoothing),
                    "give one from 0 to less than 1");
  }
  if (label_smoothing > 0 && vocab_size < 2) {
    throw_bad_input(fmt::format("label smoothing with a vocabulary of {} tokens", vocab_size),
                    "there is no other token to smooth to: use 0");
  }
  if (label_smoothing == 0) return 0;
  const auto size = static_cast<double>(vocab_size);
  return label_smoothing * size / (size - 1);
}

void check_can_be_overwritten(const at::Tensor& logits) {
  for (int64_t dim = 0; dim < logits.dim(); ++dim) {
    if (logits.size(dim) < 2 || logits.stride(dim) != 0) continue;
    throw_bad_input(
        fmt::format("logits whose dim {} repeats one part of memory are to be overwritten", dim),
        "give a contiguous copy, or leave overwrite_logits off");
  }
}

// The inputs of forward and backward besides tensors.
struct Smoothed {
  VocabShard shard;
  double mean_share = 0;
  int64_t vocab_size = 0;
};

struct CrossEntropyResult {
  at::Tensor loss;      // [..]
  at::Tensor max, sum;  // [R]
  LocalTarget target;
};

CrossEntropyResult distributed_loss(const at::Tensor& logits, const at::Tensor& target,
                                    const Smoothed& how) {
  const at::TensorOptions wide = logits.options().dtype(logprob_type(logits.scalar_type()));
  CrossEntropyResult out;
  out.target = LocalTarget::of(target.reshape({-1}), how.shard.range);
  RowSoftmax softmax(target.numel(), how.shard, wide,
                     how.mean_share > 0 ? RowSoftmax::kSumOfLogits : RowSoftmax::kNoMore);
  for (const RowBlock& block : row_blocks(logits, how.shard)) {
    softmax.add(block.first, block.logits, out.target);
  }
  at::Tensor loss = softmax.reduce(out.target).neg_();
  if (how.mean_share > 0) {
    const at::Tensor mean =
        softmax.sum_of_shifted() / static_cast<double>(how.vocab_size) - softmax.sum().log();
    loss = loss.mul_(1 - how.mean_share).sub_(mean, how.mean_share);
  }
  out.loss = loss.view(target.sizes());
  out.max = softmax.max();
  out.sum = softmax.sum();
  return out;
}

// The gradient, block by block in the memory of the logits.
at::Tensor overwritten(const at::Tensor& logits, const VocabShard& shard,
                       LogprobGradient gradient) {
  for (const RowBlock& block : row_blocks(logits, shard)) {
    block.logits.copy_(gradient.block(block.first, block.logits));
  }
  logits.narrow(-1, shard.range.counted, logits.size(-1) - shard.range.counted).zero_();
  return logits;
}

struct CrossEntropyFunction : Function<CrossEntropyFunction> {
  static at::Tensor forward(FunctionContext* ctx, const at::Tensor& logits,
                            const at::Tensor& target, const Smoothed& how, bool overwrite) {
    const CrossEntropyResult result = distributed_loss(logits, target, how);
    ctx->save_for_backward(
        {logits, result.max, result.sum, result.target.column, result.target.owned});
    how.shard.save(*ctx);
    ctx->saved_data["mean_share"] = how.mean_share;
    ctx->saved_data["vocab_size"] = how.vocab_size;
    ctx->saved_data["overwrite"] = overwrite;
    return result.loss;
  }

  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    SHARDPROOF_ASSERT(!at::GradMode::is_enabled(), "the cross entropy has no second derivative");
    const auto saved = ctx->get_saved_variables();
    auto& data = ctx->saved_data;
    const Smoothed how{.shard = VocabShard::load(*ctx, saved[0].size(-1)),
                       .mean_share = data["mean_share"].toDouble(),
                       .vocab_size = data["vocab_size"].toInt()};
    LogprobGradient gradient(how.shard, saved[1], saved[2], {.column = saved[3], .owned = saved[4]},
                             grads[0].reshape({-1}).neg(),
                             {.share = how.mean_share, .vocab_size = how.vocab_size});
    const auto write = data["overwrite"].toBool() ? overwritten : logits_gradient;
    return {write(saved[0].detach(), how.shard, std::move(gradient)), at::Tensor(), at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                        Communicator& tp, int64_t vocab_size,
                                        const CrossEntropyOptions& options) {
  SHARDPROOF_ASSERT(logits.dim() > 0 && logits.sizes().slice(0, static_cast<size_t>(logits.dim()) -
                                                                    1) == target.sizes(),
                    "one target per row of logits");
  const double share = mean_share(options.label_smoothing, vocab_size);
  if (options.overwrite_logits) check_can_be_overwritten(logits);
  check_targets(target, vocab_size);
  const Smoothed how{
      .shard = VocabShard::of(logits.size(-1), vocab_size, tp,
                              {.label = options.label, .block_rows = options.block_rows}),
      .mean_share = share,
      .vocab_size = vocab_size};
  if (!at::GradMode::is_enabled() || !logits.requires_grad()) {
    const at::NoGradGuard no_grad;
    return distributed_loss(logits, target, how).loss;
  }
  return CrossEntropyFunction::apply(logits, target, how, options.overwrite_logits);
}

}  // namespace shardproof
