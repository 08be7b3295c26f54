#include "train/loss.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace shardproof {
namespace {

// `values` where the mask counts, 0 elsewhere, so that no NaN or infinity of a masked position
// reaches the loss or, through 0 * inf, its gradient.
at::Tensor counted_only(const at::Tensor& values, const at::Tensor& counted) {
  return at::where(counted, values, at::zeros_like(values));
}

at::Tensor needed(const at::Tensor& values, const char* name, const at::Tensor& like,
                  const at::Tensor& counted) {
  SHARDPROOF_ASSERT(values.defined(), std::string("the loss needs ") + name);
  return counted_only(values, counted).to(like.scalar_type());
}

at::Tensor ratio_of(const LossInputs& inputs, const at::Tensor& counted,
                    const at::Tensor& logprobs) {
  return (logprobs - needed(inputs.prev_logprobs, "prev_logprobs", logprobs, counted)).exp();
}

// exp(d) - d - 1 with d = reference - now: at least 0, and 0 where they agree.
at::Tensor kl_of(const LossInputs& inputs, const at::Tensor& counted, const at::Tensor& logprobs) {
  const at::Tensor distance =
      needed(inputs.reference_logprobs, "reference_logprobs", logprobs, counted) - logprobs;
  return distance.exp() - distance - 1;
}

at::Tensor clipped_policy_gradient(const LossInputs& inputs, const at::Tensor& counted,
                                   const at::Tensor& logprobs, const LossOptions& options) {
  const at::Tensor advantages = needed(inputs.advantages, "advantages", logprobs, counted);
  const at::Tensor ratio = ratio_of(inputs, counted, logprobs);
  const at::Tensor clamped = ratio.clamp(1 - options.clip_eps, 1 + options.clip_eps);
  at::Tensor per_token = at::maximum(-advantages * ratio, -advantages * clamped);
  if (options.kl_beta != 0) {
    per_token = per_token + options.kl_beta * kl_of(inputs, counted, logprobs);
  }
  return per_token;
}

at::Tensor divisor_of(const at::Tensor& tokens_of_sequence) {
  return at::where(tokens_of_sequence > 0, tokens_of_sequence, at::ones_like(tokens_of_sequence));
}

double weight_of(double count) { return count > 0 ? 1 / count : 0; }

// For each pair [b / 2]: whether it counts, and how much farther the chosen sequence moved from the
// reference than the rejected one.
struct Margins {
  at::Tensor counted, values;
};

Margins margins_of(const LossInputs& inputs, const at::Tensor& counted, const at::Tensor& logprobs,
                   const LossOptions& options) {
  SHARDPROOF_ASSERT(logprobs.size(0) % 2 == 0, "samples of a preference come in pairs");
  const at::Tensor mask = inputs.mask.to(logprobs.scalar_type()), tokens = mask.sum(1);
  const at::Tensor reference =
      needed(inputs.reference_logprobs, "reference_logprobs", logprobs, counted);
  at::Tensor moved = ((logprobs - reference) * mask).sum(1);
  if (options.normalization == LossNormalization::kSequence) moved = moved / divisor_of(tokens);
  const at::Tensor pairs = moved.view({-1, 2});
  return {.counted = (tokens > 0).view({-1, 2}).all(1),
          .values = options.kl_beta * (pairs.select(1, 0) - pairs.select(1, 1))};
}

at::Tensor preference(const LossInputs& inputs, const at::Tensor& counted,
                      const at::Tensor& logprobs, const LossCounts& counts,
                      const LossOptions& options) {
  const Margins margins = margins_of(inputs, counted, logprobs, options);
  const at::Tensor lost = -at::log_sigmoid(margins.values);
  return counted_only(lost, margins.counted).sum() * weight_of(counts.pairs);
}

}  // namespace

at::Tensor loss_addend(const LossInputs& inputs, const LossCounts& counts,
                       const LossOptions& options) {
  const at::Tensor counted = inputs.mask != 0;
  const at::Tensor logprobs = counted_only(inputs.logprobs, counted);
  const at::Tensor mask = inputs.mask.to(logprobs.scalar_type());
  at::Tensor per_token;
  switch (options.kind) {
    case LossKind::kNll:
      per_token = -logprobs;
      break;
    case LossKind::kClippedPolicyGradient:
      per_token = clipped_policy_gradient(inputs, counted, logprobs, options);
      break;
    case LossKind::kPreference:
      return preference(inputs, counted, logprobs, counts, options);
  }
  if (options.normalization == LossNormalization::kToken) {
    return (per_token * mask).sum() * weight_of(counts.tokens);
  }
  const at::Tensor means = (per_token * mask).sum(1) / divisor_of(mask.sum(1));
  return means.sum() * weight_of(counts.sequences);
}

std::vector<LossMetric> loss_metrics(const LossInputs& inputs, const LossCounts& counts,
                                     const LossOptions& options) {
  const at::NoGradGuard no_grad;
  const at::Tensor counted = inputs.mask != 0;
  const at::Tensor logprobs = counted_only(inputs.logprobs, counted);
  const at::Tensor mask = inputs.mask.to(logprobs.scalar_type());
  const auto mean = [&](const at::Tensor& per_token) {
    return (per_token * mask).sum() * weight_of(counts.tokens);
  };
  std::vector<LossMetric> metrics;
  if (options.kind == LossKind::kClippedPolicyGradient) {
    const at::Tensor ratio = ratio_of(inputs, counted, logprobs);
    metrics.push_back({"ratio", mean(ratio)});
    if (options.kl_beta != 0) metrics.push_back({"kl", mean(kl_of(inputs, counted, logprobs))});
    const at::Tensor outside = (ratio - 1).abs() > options.clip_eps;
    metrics.push_back({"clip_fraction", mean(outside.to(mask.scalar_type()))});
  } else if (options.kind == LossKind::kPreference) {
    const Margins margins = margins_of(inputs, counted, logprobs, options);
    const double weight = weight_of(counts.pairs);
    // A margin that differs from 0 only by the rounding of the sums is not a win.
    const double rounding = 1e-9 * std::abs(options.kl_beta);
    const at::Tensor won = (margins.values > rounding).to(mask.scalar_type());
    metrics.push_back({"margin", counted_only(margins.values, margins.counted).sum() * weight});
    metrics.push_back({"accuracy", counted_only(won, margins.counted).sum() * weight});
  }
  return metrics;
}

std::vector<LossMetric> no_metrics(const LossOptions& options, at::Device device) {
  const at::Tensor none = at::zeros({2, 1}, at::TensorOptions().dtype(at::kDouble).device(device));
  return loss_metrics({.logprobs = none,
                       .mask = none,
                       .prev_logprobs = none,
                       .reference_logprobs = none,
                       .advantages = none},
                      {.tokens = 1, .sequences = 1, .pairs = 1}, options);
}

std::string logprobs_name(int64_t depth) {
  return depth == 0 ? "logprobs" : "logprobs." + std::to_string(depth);
}

at::Tensor mask_of_head(const at::Tensor& mask, int64_t depth) {
  at::Tensor own = mask.clone();
  own.narrow(1, 0, std::min(1 + depth, mask.size(1))).zero_();
  return own;
}

at::Tensor head_loss_addend(const at::Tensor& logprobs, const at::Tensor& mask, int64_t depth,
                            const LossCounts& counts) {
  const at::Tensor own = mask_of_head(mask, depth);
  const at::Tensor counted = counted_only(logprobs, own != 0);
  return -(counted * own.to(logprobs.scalar_type())).sum() *
         weight_of(counts.tokens_of_heads.at(static_cast<size_t>(depth - 1)));
}

LossCounts counts_of(const at::Tensor& mask, int64_t extra_heads) {
  const at::Tensor valid = mask.ne(0).any(1);
  LossCounts counts{.tokens = mask.sum().item<double>(), .sequences = valid.sum().item<double>()};
  if (valid.numel() % 2 == 0) counts.pairs = valid.view({-1, 2}).all(1).sum().item<double>();
  for (int64_t depth = 1; depth <= extra_heads; ++depth) {
    counts.tokens_of_heads.push_back(mask_of_head(mask, depth).sum().item<double>());
  }
  return counts;
}

}  // namespace shardproof
