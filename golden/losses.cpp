#include "golden/losses.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "model/precision.h"
#include "sim/case/names.h"

namespace shardproof::golden {
namespace {

// `values` where the mask is not 0, else 0, so that NaN or infinity elsewhere cannot spread.
at::Tensor counted(const at::Tensor& values, const at::Tensor& mask) {
  return at::where(mask.ne(0), values, at::zeros_like(values));
}

at::Tensor needed(const at::Tensor& values, const char* name, const at::Tensor& mask) {
  if (!values.defined()) {
    throw_bad_input(fmt::format("the loss needs '{}', which the batch has not", name),
                    "add it to batch.safetensors, or use nll");
  }
  return counted(values.to(mask.options()), mask);
}

// max(-A r, -A clamp(r, 1 - eps, 1 + eps)), where r is clipped if `seen`, a ratio near r, is.
at::Tensor clipped_as_seen(const at::Tensor& ratio, const at::Tensor& seen,
                           const at::Tensor& advantages, double eps) {
  const at::Tensor clipped = at::where(advantages > 0, seen > 1.0 + eps, seen < 1.0 - eps);
  const at::Tensor edge =
      at::where(advantages > 0, at::full_like(ratio, 1.0 + eps), at::full_like(ratio, 1.0 - eps));
  return -advantages * at::where(clipped, edge, ratio);
}

// [B, S]: max(-A r, -A clamp(r, 1 - eps, 1 + eps)) + beta * (exp(d) - d - 1), r = exp(new - old),
// d = reference - new.
at::Tensor clipped_policy_gradient(const at::Tensor& logprobs, const Batch& batch,
                                   const at::Tensor& mask, const LossOptions& loss,
                                   const at::Tensor& doubt) {
  const at::Tensor now = counted(logprobs, mask);
  const at::Tensor advantages = needed(batch.advantages, "advantages", mask);
  const at::Tensor ratio = (now - needed(batch.prev_logprobs, "prev_logprobs", mask)).exp();
  const at::Tensor gain =
      clipped_as_seen(ratio, doubt.defined() ? ratio * doubt : ratio, advantages, loss.clip_eps);
  if (loss.kl_beta == 0) return gain;
  const at::Tensor d = needed(batch.reference_logprobs, "reference_logprobs", mask) - now;
  return gain + loss.kl_beta * (d.exp() - d - 1.0);
}

// For samples 2i (chosen) and 2i + 1 (rejected): beta * ((chosen - its reference) - (rejected - its
// reference)), each a sum or a mean over counted tokens.
struct Pair {
  bool counts;
  at::Tensor margin;
};

std::vector<Pair> preference_pairs(const at::Tensor& logprobs, const Batch& batch,
                                   const at::Tensor& mask, const LossOptions& loss) {
  const int64_t samples = logprobs.size(0);
  if (samples % 2 != 0) {
    throw_bad_input(
        fmt::format("{} samples do not come in pairs, as loss preference needs", samples),
        "give each chosen sample the rejected one behind it");
  }
  const at::Tensor reference = needed(batch.reference_logprobs, "reference_logprobs", mask);
  const at::Tensor now = counted(logprobs, mask);
  const auto moved = [&](int64_t sample) {
    const at::Tensor sum = ((now[sample] - reference[sample]) * mask[sample]).sum();
    const at::Tensor tokens = mask[sample].sum();
    return loss.normalization == LossNormalization::kSequence && tokens.item<double>() > 0
               ? sum / tokens
               : sum;
  };
  std::vector<Pair> pairs;
  for (int64_t chosen = 0; chosen < samples; chosen += 2) {
    const bool counts =
        mask[chosen].sum().item<double>() > 0 && mask[chosen + 1].sum().item<double>() > 0;
    pairs.push_back({counts, loss.kl_beta * (moved(chosen) - moved(chosen + 1))});
  }
  return pairs;
}

at::Tensor preference(const at::Tensor& logprobs, const Batch& batch, const at::Tensor& mask,
                      const LossOptions& loss) {
  at::Tensor sum = counted(logprobs, mask).sum() * 0;
  double count = 0;
  for (const Pair& pair : preference_pairs(logprobs, batch, mask, loss)) {
    if (!pair.counts) continue;
    // log(1 + exp(-margin)), whose exponential would overflow for a very negative margin.
    sum = sum + at::logaddexp(at::zeros_like(pair.margin), -pair.margin);
    ++count;
  }
  return count == 0 ? sum : sum / count;
}

}  // namespace

at::Tensor dense_log_softmax(const at::Tensor& logits, const at::Tensor& moves) {
  const at::Tensor wide = logits.to(wider_type(logits.scalar_type()));
  const at::Tensor all = at::log_softmax(wide, -1);
  if (!moves.defined()) return all;
  const at::Tensor sums = at::logsumexp(wide, -1, /*keepdim=*/true);
  return all - (moves + (sums - sums.detach()) * at::expm1(-moves));
}

at::Tensor dense_logprobs(const at::Tensor& logits, const Batch& batch, const at::Tensor& moves) {
  const at::Tensor ids = batch.input_ids.to(logits.device());
  const int64_t seq_len = ids.size(1);
  const at::Tensor all = dense_log_softmax(logits, moves);
  const at::Tensor next = all.narrow(1, 0, seq_len - 1)
                              .gather(-1, ids.narrow(1, 1, seq_len - 1).unsqueeze(-1))
                              .squeeze(-1);
  const at::Tensor first = at::zeros({ids.size(0), 1}, all.options());
  const at::Tensor inside =
      at::arange(seq_len, ids.options()).lt(batch.input_lengths.to(ids.device()).unsqueeze(1));
  const at::Tensor logprobs = at::cat({first, next}, 1);
  return at::where(inside, logprobs, at::zeros_like(logprobs));
}

at::Tensor dense_loss(const at::Tensor& logprobs, const Batch& batch, const LossOptions& loss,
                      const at::Tensor& doubt) {
  const at::Tensor mask = batch.loss_mask().to(logprobs.options());
  at::Tensor per_token;
  switch (loss.kind) {
    case LossKind::kNll:
      per_token = -counted(logprobs, mask);
      break;
    case LossKind::kClippedPolicyGradient:
      per_token = clipped_policy_gradient(logprobs, batch, mask, loss, doubt);
      break;
    case LossKind::kPreference:
      return preference(logprobs, batch, mask, loss);
  }
  const at::Tensor values = per_token * mask;
  if (loss.normalization == LossNormalization::kToken) {
    const double tokens = mask.sum().item<double>();
    return tokens == 0 ? values.sum() : values.sum() / tokens;
  }
  const at::Tensor tokens = mask.sum(1);  // [B]
  const double sequences = tokens.ne(0).sum().item<double>();
  const at::Tensor means = values.sum(1) / at::where(tokens.ne(0), tokens, at::ones_like(tokens));
  return sequences == 0 ? means.sum() : means.sum() / sequences;
}

std::vector<Metric> dense_metrics(const at::Tensor& logprobs, const Batch& batch,
                                  const LossOptions& loss) {
  const at::Tensor mask = batch.loss_mask().to(logprobs.options());
  const double tokens = mask.sum().item<double>();
  std::vector<Metric> metrics = {{"tokens", tokens},
                                 {"sequences", mask.sum(1).ne(0).sum().item<double>()}};
  const at::Tensor now = counted(logprobs.detach(), mask);
  const auto mean = [&](const at::Tensor& values) {
    return tokens == 0 ? 0.0 : (values * mask).sum().item<double>() / tokens;
  };
  if (loss.kind == LossKind::kClippedPolicyGradient) {
    const at::Tensor ratio = (now - needed(batch.prev_logprobs, "prev_logprobs", mask)).exp();
    const at::Tensor outside = at::logical_or(ratio > 1 + loss.clip_eps, ratio < 1 - loss.clip_eps);
    metrics.push_back({"ratio", mean(ratio)});
    metrics.push_back({"clip_fraction", mean(outside.to(mask.scalar_type()))});
    if (loss.kl_beta != 0) {
      const at::Tensor d = needed(batch.reference_logprobs, "reference_logprobs", mask) - now;
      metrics.push_back({"kl", mean(d.exp() - d - 1.0)});
    }
  }
  if (loss.kind == LossKind::kPreference) {
    double margin = 0, won = 0, count = 0;
    for (const Pair& pair : preference_pairs(logprobs.detach(), batch, mask, loss)) {
      if (!pair.counts) continue;
      margin += pair.margin.item<double>();
      // A margin that differs from 0 only by the rounding of the sums is not a win.
      won += pair.margin.item<double>() > 1e-9 * std::abs(loss.kl_beta) ? 1 : 0;
      ++count;
    }
    metrics.push_back({"margin", count == 0 ? 0 : margin / count});
    metrics.push_back({"accuracy", count == 0 ? 0 : won / count});
  }
  return metrics;
}

}  // namespace shardproof::golden
