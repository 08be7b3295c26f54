#include "logprob/vocab_parallel_kl.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "tensor/function.h"

namespace shardproof {
namespace {

// Sums of each row over tp, in the wider type, with y = (x - max) / temperature and e = exp(y) of
// each policy.
struct KlSums {
  at::Tensor max;  // [2, R] of p and of q
  at::Tensor sum;  // [2, R] of e
  at::Tensor dot;  // [R] of e_p * (y_p - y_q)
  at::Tensor log_ratio() const { return sum[1].log() - sum[0].log(); }
  at::Tensor kl() const { return dot / sum[0] + log_ratio(); }
};

// The blocks of the same rows of both policies, which strides may cut differently.
struct Pair {
  RowBlock p, q;
};

std::vector<Pair> paired_blocks(const at::Tensor& p, const at::Tensor& q, const VocabShard& shard) {
  const auto of_p = row_blocks(p, shard);
  const auto of_q = row_blocks(q, shard);
  const bool alike = std::equal(of_p.begin(), of_p.end(), of_q.begin(), of_q.end(),
                                [](const RowBlock& a, const RowBlock& b) {
                                  return a.first == b.first && a.count == b.count;
                                });
  if (!alike) return paired_blocks(p.contiguous(), q.contiguous(), shard);
  std::vector<Pair> pairs;
  for (size_t i = 0; i < of_p.size(); ++i) pairs.push_back({of_p[i], of_q[i]});
  return pairs;
}

KlSums kl_sums(const at::Tensor& p, const at::Tensor& q, int64_t rows, const VocabShard& shard) {
  const at::ScalarType wide = logprob_type(p.scalar_type());
  const at::TensorOptions options = p.options().dtype(wide);
  const at::Tensor own_max = at::empty({2, rows}, options);
  const at::Tensor own = at::empty({3, rows}, options);  // sum of p, sum of q, dot
  BlockBuffer buffer_p(wide), buffer_q(wide);
  for (const Pair& pair : paired_blocks(p, q, shard)) {
    const auto here = [&pair](const at::Tensor& tensor) {
      return tensor.narrow(0, pair.p.first, pair.p.count);
    };
    const at::Tensor max_p = row_max(pair.p.logits, wide);
    const at::Tensor max_q = row_max(pair.q.logits, wide);
    here(own_max[0]).copy_(max_p);
    here(own_max[1]).copy_(max_q);
    at::Tensor shifted_p = buffer_p.shifted(pair.p.logits, finite_max(max_p), shard.temperature);
    const at::Tensor shifted_q =
        buffer_q.shifted(pair.q.logits, finite_max(max_q), shard.temperature);
    const at::Tensor weights = shifted_p.exp();
    here(own[0]).copy_(weights.sum(-1));
    here(own[1]).copy_(shifted_q.exp().sum(-1));
    here(own[2]).copy_(
        shifted_p.sub_(shifted_q).mul_(weights).masked_fill_(weights.eq(0), 0).sum(-1));
  }
  KlSums out;
  out.max = finite_max(shard.reduce(own_max, ReduceOp::kMax, " max"));
  const at::Tensor scale = tempered(own_max - out.max, shard.temperature).exp_();
  const at::Tensor sums = own.narrow(0, 0, 2) * scale;
  const at::Tensor moved = tempered(finite_max(own_max) - out.max, shard.temperature);
  const at::Tensor dot = own[2] * scale[0] + (moved[0] - moved[1]) * sums[0];
  const at::Tensor reduced =
      shard.reduce(at::cat({sums, dot.unsqueeze(0)}), ReduceOp::kSum, " sum");
  out.sum = reduced.narrow(0, 0, 2);
  out.dot = reduced[2];
  return out;
}

struct KlGradients {
  at::Tensor p, q;
};

KlGradients kl_gradients(const at::Tensor& p, const at::Tensor& q, const VocabShard& shard,
                         const KlSums& sums, const at::Tensor& grad) {
  KlGradients out{.p = at::empty(p.sizes(), p.options()), .q = at::empty(q.sizes(), q.options())};
  const int64_t counted = shard.range.counted;
  const int64_t padding = p.size(-1) - counted;
  const at::Tensor rows_p = out.p.view({-1, p.size(-1)}), rows_q = out.q.view({-1, q.size(-1)});
  const at::Tensor scaled = grad / shard.temperature;
  const at::Tensor kl_minus_ratio = sums.kl() - sums.log_ratio();
  const at::Tensor no_gradient = grad.eq(0);
  BlockBuffer buffer_p(sums.max.scalar_type()), buffer_q(sums.max.scalar_type());
  for (const Pair& pair : paired_blocks(p, q, shard)) {
    const auto here = [&pair](const at::Tensor& tensor) {
      return tensor.narrow(0, pair.p.first, pair.p.count);
    };
    const auto rows = [&here](const at::Tensor& tensor) { return here(tensor).unsqueeze(-1); };
    at::Tensor shifted_p = buffer_p.shifted(pair.p.logits, here(sums.max[0]), shard.temperature);
    at::Tensor shifted_q = buffer_q.shifted(pair.q.logits, here(sums.max[1]), shard.temperature);
    const at::Tensor prob_p = shifted_p.exp().div_(rows(sums.sum[0]));
    shifted_p.sub_(shifted_q).sub_(rows(kl_minus_ratio)).mul_(prob_p).mul_(rows(scaled));
    shifted_p.masked_fill_(prob_p.eq(0).logical_or_(rows(no_gradient)), 0);
    shifted_q.exp_().div_(rows(sums.sum[1])).sub_(prob_p).mul_(rows(scaled));
    shifted_q.masked_fill_(rows(no_gradient), 0);
    here(rows_p).narrow(1, 0, counted).copy_(shifted_p);
    here(rows_q).narrow(1, 0, counted).copy_(shifted_q);
  }
  rows_p.narrow(1, counted, padding).zero_();
  rows_q.narrow(1, counted, padding).zero_();
  return out;
}

struct KlFunction : Function<KlFunction> {
  static at::Tensor forward(FunctionContext* ctx, const at::Tensor& p, const at::Tensor& q,
                            const VocabShard& shard) {
    const auto shape = p.sizes().slice(0, static_cast<size_t>(p.dim()) - 1);
    const KlSums sums = kl_sums(p, q, c10::multiply_integers(shape), shard);
    ctx->save_for_backward({p, q, sums.max, sums.sum, sums.dot});
    shard.save(*ctx);
    return sums.kl().view(shape);
  }

  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    SHARDPROOF_ASSERT(!at::GradMode::is_enabled(), "the KL has no second derivative");
    const auto saved = ctx->get_saved_variables();
    const VocabShard shard = VocabShard::load(*ctx, saved[0].size(-1));
    const KlGradients out = kl_gradients(saved[0], saved[1], shard, {saved[2], saved[3], saved[4]},
                                         grads[0].reshape({-1}));
    return {out.p, out.q, at::Tensor()};
  }
};

}  // namespace

at::Tensor vocab_parallel_kl(const at::Tensor& logits_p, const at::Tensor& logits_q,
                             Communicator& tp, int64_t vocab_size, const LogprobOptions& options) {
  SHARDPROOF_ASSERT(
      logits_p.sizes() == logits_q.sizes() && logits_p.scalar_type() == logits_q.scalar_type(),
      "two policies' logits of one shape and dtype");
  const VocabShard shard = VocabShard::of(logits_p.size(-1), vocab_size, tp, options);
  const bool inference = keeps_nothing(options);
  return KlFunction::apply(inference ? logits_p.detach() : logits_p,
                           inference ? logits_q.detach() : logits_q, shard);
}

}  // namespace shardproof
