#include "logprob/row_softmax.h"

#include <ATen/ATen.h>

namespace shardproof {

LocalTarget LocalTarget::of(const at::Tensor& target, const VocabRange& range) {
  const at::Tensor owned =
      (target >= range.start).logical_and(target < range.start + range.counted);
  return {.column = at::where(owned, target - range.start, at::zeros_like(target)), .owned = owned};
}

RowSoftmax::RowSoftmax(int64_t rows, const VocabShard& shard, const at::TensorOptions& wide)
    : shard_(shard),
      buffer_(c10::typeMetaToScalarType(wide.dtype())),
      max_(at::empty({rows}, wide)),
      sum_(at::empty({rows}, wide)),
      picked_(at::empty({rows}, wide)) {}

void RowSoftmax::add(int64_t first, const at::Tensor& logits, const LocalTarget& target) {
  const int64_t count = logits.size(0);
  const at::ScalarType wide = max_.scalar_type();
  const at::Tensor max = row_max(logits, shard_, wide);
  max_.narrow(0, first, count).copy_(max);
  sum_.narrow(0, first, count)
      .copy_(buffer_.shifted(logits, finite_max(max), shard_.temperature).exp_().sum(-1));
  at::Tensor picked = picked_.narrow(0, first, count);
  if (logits.size(-1) == 0) {
    picked.zero_();
    return;
  }
  const at::Tensor column = target.column.narrow(0, first, count).unsqueeze(-1);
  picked.copy_(logits.gather(-1, column).squeeze(-1));
  if (shard_.temperature != 1.0) picked.div_(shard_.temperature);
}

at::Tensor RowSoftmax::reduce(const LocalTarget& target) {
  const at::Tensor own_max = max_;
  max_ = shard_.reduce(own_max, ReduceOp::kMax, " max");
  const at::Tensor base = finite_max(max_);
  sum_ = shard_.reduce(sum_ * (own_max - base).exp_(), ReduceOp::kSum, " sum");
  const at::Tensor own_picked = at::where(target.owned, picked_ - base, at::zeros_like(picked_));
  const at::Tensor picked = shard_.reduce(own_picked, ReduceOp::kSum, " picked");
  max_ = base;
  return picked - sum_.log();
}

LogprobGradient::LogprobGradient(const VocabShard& shard, at::Tensor max, at::Tensor sum,
                                 LocalTarget target, const at::Tensor& grad)
    : shard_(shard),
      buffer_(max.scalar_type()),
      max_(std::move(max)),
      target_(std::move(target)),
      no_gradient_(grad.eq(0)) {
  const at::Tensor scaled = shard.temperature == 1.0 ? grad : grad / shard.temperature;
  grad_at_target_ = at::where(target_.owned, scaled, at::zeros_like(scaled));
  softmax_factor_ = scaled.neg() / sum;
}

at::Tensor LogprobGradient::block(int64_t first, const at::Tensor& logits) {
  const int64_t count = logits.size(0);
  const auto rows = [first, count](const at::Tensor& tensor) {
    return tensor.narrow(0, first, count).unsqueeze(-1);
  };
  at::Tensor out = buffer_.shifted(logits, max_.narrow(0, first, count), shard_.temperature);
  if (logits.size(-1) == 0) return out;
  out.exp_().mul_(rows(softmax_factor_));
  out.scatter_add_(-1, rows(target_.column), rows(grad_at_target_));
  const at::Tensor dropped = rows(no_gradient_);
  if (dropped.any().item<bool>()) out.masked_fill_(dropped, 0);
  return out;
}

}  // namespace shardproof
