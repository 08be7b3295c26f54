#include "logprob/vocab_parallel_logprob.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "logprob/row_softmax.h"
#include "tensor/function.h"

namespace shardproof {
namespace {

struct Result {
  at::Tensor logprob;   // [..]
  at::Tensor max, sum;  // [R]
  LocalTarget target;
};

Result distributed_logprob(const at::Tensor& logits, const at::Tensor& target,
                           const VocabShard& shard) {
  const at::TensorOptions wide = logits.options().dtype(logprob_type(logits.scalar_type()));
  Result out;
  out.target = LocalTarget::of(target.reshape({-1}), shard.range);
  RowSoftmax softmax(target.numel(), shard, wide);
  for (const RowBlock& block : row_blocks(logits, shard)) {
    softmax.add(block.first, block.logits, out.target);
  }
  out.logprob = softmax.reduce(out.target).view(target.sizes());
  out.max = softmax.max();
  out.sum = softmax.sum();
  return out;
}

struct LogprobFunction : Function<LogprobFunction> {
  static at::Tensor forward(FunctionContext* ctx, const at::Tensor& logits,
                            const at::Tensor& target, const VocabShard& shard) {
    const Result result = distributed_logprob(logits, target, shard);
    ctx->save_for_backward(
        {logits, result.max, result.sum, result.target.column, result.target.owned});
    shard.save(*ctx);
    return result.logprob;
  }

  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    SHARDPROOF_ASSERT(!at::GradMode::is_enabled(), "the logprob has no second derivative");
    const auto saved = ctx->get_saved_variables();
    const VocabShard shard = VocabShard::load(*ctx, saved[0].size(-1));
    LogprobGradient gradient(shard, saved[1], saved[2], {.column = saved[3], .owned = saved[4]},
                             grads[0].reshape({-1}));
    return {logits_gradient(saved[0], shard, std::move(gradient)), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor vocab_parallel_logprob(const at::Tensor& logits, const at::Tensor& target,
                                  Communicator& tp, int64_t vocab_size,
                                  const LogprobOptions& options) {
  SHARDPROOF_ASSERT(
      logits.sizes().slice(0, static_cast<size_t>(logits.dim()) - 1) == target.sizes(),
      "one target per row of logits");
  check_targets(target, vocab_size);
  const VocabShard shard = VocabShard::of(logits.size(-1), vocab_size, tp, options);
  if (keeps_nothing(options)) {
    const at::NoGradGuard no_grad;
    return distributed_logprob(logits, target, shard).logprob;
  }
  return LogprobFunction::apply(logits, target, shard);
}

at::Tensor next_token_logprobs(const at::Tensor& logits, const at::Tensor& input_ids,
                               Communicator& tp, int64_t vocab_size,
                               const LogprobOptions& options) {
  SHARDPROOF_ASSERT(logits.dim() == 3 && input_ids.dim() == 2, "logits [b, s, V_tp], ids [b, s]");
  // The last position gets an existing target (the first token); its result is dropped.
  const at::Tensor target = input_ids.roll(-1, 1);
  const at::Tensor shifted = vocab_parallel_logprob(logits, target, tp, vocab_size, options);
  const int64_t seq_len = input_ids.size(1);
  const at::Tensor first =
      at::zeros({input_ids.size(0), std::min<int64_t>(seq_len, 1)}, shifted.options());
  return at::cat({first, shifted.narrow(1, 0, std::max<int64_t>(seq_len - 1, 0))}, 1);
}

}  // namespace shardproof
