#include "logprob/vocab_parallel_entropy.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "tensor/function.h"

namespace shardproof {
namespace {

// Sums of each row, [R] in the wider type. With x the logits and e = exp((x - max) / temperature):
struct EntropySums {
  at::Tensor max;  // over tp
  at::Tensor sum;  // of e, over tp
  at::Tensor dot;  // of e * (x - max) / temperature, over tp
  at::Tensor entropy() const { return sum.log() - dot / sum; }
};

EntropySums entropy_sums(const at::Tensor& logits, int64_t rows, const VocabShard& shard) {
  const at::ScalarType wide = logprob_type(logits.scalar_type());
  const at::TensorOptions options = logits.options().dtype(wide);
  const at::Tensor own_max = at::empty({rows}, options);
  const at::Tensor own = at::empty({2, rows}, options);  // sum and dot
  BlockBuffer buffer(wide);
  for (const RowBlock& block : row_blocks(logits, shard)) {
    const at::Tensor max = row_max(block.logits, wide);
    const at::Tensor shifted = buffer.shifted(block.logits, finite_max(max), shard.temperature);
    const at::Tensor weights = shifted.exp();
    own_max.narrow(0, block.first, block.count).copy_(max);
    own[0].narrow(0, block.first, block.count).copy_(weights.sum(-1));
    // Where the weight is 0 the logit may be -infinity.
    own[1]
        .narrow(0, block.first, block.count)
        .copy_(shifted.mul_(weights).masked_fill_(weights.eq(0), 0).sum(-1));
  }
  EntropySums out;
  out.max = finite_max(shard.reduce(own_max, ReduceOp::kMax, " max"));
  const at::Tensor scale = tempered(own_max - out.max, shard.temperature).exp_();
  const at::Tensor sum = own[0] * scale;
  const at::Tensor moved = tempered(finite_max(own_max) - out.max, shard.temperature);
  const at::Tensor dot = own[1] * scale + moved * sum;
  const at::Tensor sums = shard.reduce(at::stack({sum, dot}), ReduceOp::kSum, " sum");
  out.sum = sums[0];
  out.dot = sums[1];
  return out;
}

// -p (log p + H) for each column, times the row's gradient.
at::Tensor entropy_gradient(const at::Tensor& logits, const VocabShard& shard,
                            const EntropySums& sums, const at::Tensor& grad) {
  at::Tensor out = at::empty(logits.sizes(), logits.options());
  const at::Tensor out_rows = out.view({-1, logits.size(-1)});
  const int64_t counted = shard.range.counted;
  const at::Tensor factor = grad.neg() / (sums.sum * shard.temperature);
  const at::Tensor offset = sums.entropy() - sums.sum.log();
  const at::Tensor no_gradient = grad.eq(0);
  BlockBuffer buffer(sums.max.scalar_type());
  for (const RowBlock& block : row_blocks(logits, shard)) {
    const auto rows = [&block](const at::Tensor& tensor) {
      return tensor.narrow(0, block.first, block.count).unsqueeze(-1);
    };
    at::Tensor shifted = buffer.shifted(block.logits, sums.max.narrow(0, block.first, block.count),
                                        shard.temperature);
    const at::Tensor weights = shifted.exp();
    shifted.add_(rows(offset)).mul_(weights).mul_(rows(factor));
    shifted.masked_fill_(weights.eq(0).logical_or_(rows(no_gradient)), 0);
    out_rows.narrow(0, block.first, block.count).narrow(1, 0, counted).copy_(shifted);
  }
  out_rows.narrow(1, counted, logits.size(-1) - counted).zero_();
  return out;
}

struct EntropyFunction : Function<EntropyFunction> {
  static at::Tensor forward(FunctionContext* ctx, const at::Tensor& logits,
                            const VocabShard& shard) {
    const auto shape = logits.sizes().slice(0, static_cast<size_t>(logits.dim()) - 1);
    const EntropySums sums = entropy_sums(logits, c10::multiply_integers(shape), shard);
    ctx->save_for_backward({logits, sums.max, sums.sum, sums.dot});
    shard.save(*ctx);
    return sums.entropy().view(shape);
  }

  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    SHARDPROOF_ASSERT(!at::GradMode::is_enabled(), "the entropy has no second derivative");
    const auto saved = ctx->get_saved_variables();
    const VocabShard shard = VocabShard::load(*ctx, saved[0].size(-1));
    return {
        entropy_gradient(saved[0], shard, {saved[1], saved[2], saved[3]}, grads[0].reshape({-1})),
        at::Tensor()};
  }
};

}  // namespace

at::Tensor vocab_parallel_entropy(const at::Tensor& logits, Communicator& tp, int64_t vocab_size,
                                  const LogprobOptions& options) {
  const VocabShard shard = VocabShard::of(logits.size(-1), vocab_size, tp, options);
  const bool inference = keeps_nothing(options);
  return EntropyFunction::apply(inference ? logits.detach() : logits, shard);
}

}  // namespace shardproof
