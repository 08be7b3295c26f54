#include "train/loss.h"

#include <ATen/ATen.h>

#include "base/error.h"

namespace shardproof {
namespace {

// `values` where the mask counts, 0 elsewhere, so that no NaN or infinity of a masked position
// reaches the loss or, through 0 * inf, its gradient.
at::Tensor counted_only(const at::Tensor& values, const at::Tensor& counted) {
  return at::where(counted, values, at::zeros_like(values));
}

at::Tensor clipped_policy_gradient(const LossInputs& inputs, const at::Tensor& counted,
                                   const at::Tensor& logprobs, const LossOptions& options) {
  SHARDPROOF_ASSERT(inputs.prev_logprobs.defined() && inputs.advantages.defined(),
                    "clipped_pg needs prev_logprobs and advantages");
  const at::Tensor previous =
      counted_only(inputs.prev_logprobs, counted).to(logprobs.scalar_type());
  const at::Tensor advantages = counted_only(inputs.advantages, counted).to(logprobs.scalar_type());
  const at::Tensor ratio = (logprobs - previous).exp();
  const at::Tensor clamped = ratio.clamp(1 - options.clip_eps, 1 + options.clip_eps);
  at::Tensor per_token = at::maximum(-advantages * ratio, -advantages * clamped);
  if (options.kl_beta != 0) {
    SHARDPROOF_ASSERT(inputs.reference_logprobs.defined(), "a KL term needs reference_logprobs");
    const at::Tensor reference =
        counted_only(inputs.reference_logprobs, counted).to(logprobs.scalar_type());
    const at::Tensor distance = reference - logprobs;
    per_token = per_token + options.kl_beta * (distance.exp() - distance - 1);
  }
  return per_token;
}

}  // namespace

at::Tensor loss_addend(const LossInputs& inputs, const LossCounts& counts,
                       const LossOptions& options) {
  const at::Tensor counted = inputs.mask != 0;
  const at::Tensor logprobs = counted_only(inputs.logprobs, counted);
  const at::Tensor mask = inputs.mask.to(logprobs.scalar_type());
  const at::Tensor per_token = options.kind == LossKind::kNll
                                   ? -logprobs
                                   : clipped_policy_gradient(inputs, counted, logprobs, options);
  if (options.normalization == LossNormalization::kToken) {
    const double weight = counts.tokens > 0 ? 1 / counts.tokens : 0;
    return (per_token * mask).sum() * weight;
  }
  const at::Tensor tokens_of_sequence = mask.sum(1);
  const at::Tensor divisor =
      at::where(tokens_of_sequence > 0, tokens_of_sequence, at::ones_like(tokens_of_sequence));
  const double weight = counts.sequences > 0 ? 1 / counts.sequences : 0;
  return ((per_token * mask).sum(1) / divisor).sum() * weight;
}

}  // namespace shardproof
