#include "golden/losses.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "model/precision.h"
#include "sim/scenario/names.h"

namespace shardproof::golden {
namespace {

// `values` where the mask counts, else 0: a NaN or an overflow in what is not counted cannot
// spread.
at::Tensor counted(const at::Tensor& values, const at::Tensor& mask) {
  return at::where(mask.ne(0), values, at::zeros_like(values));
}

at::Tensor needed(const at::Tensor& values, const char* name, const at::Tensor& mask) {
  if (!values.defined()) {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = fmt::format("loss clipped_pg needs '{}', which the batch has not", name),
                 .fix = "add it to batch.safetensors, or use nll"});
  }
  return counted(values.to(mask.options()), mask);
}

// [B, S]: max(-A r, -A clamp(r, 1 - eps, 1 + eps)) + beta * (exp(d) - d - 1), r = exp(new - old),
// d = reference - new.
at::Tensor clipped_policy_gradient(const at::Tensor& logprobs, const Batch& batch,
                                   const at::Tensor& mask, const sim::LossSpec& loss) {
  const at::Tensor now = counted(logprobs, mask);
  const at::Tensor advantages = needed(batch.advantages, "advantages", mask);
  const at::Tensor ratio = (now - needed(batch.prev_logprobs, "prev_logprobs", mask)).exp();
  const at::Tensor gain =
      at::maximum(-advantages * ratio, -advantages * ratio.clamp(1.0 - loss.eps, 1.0 + loss.eps));
  if (loss.beta == 0) return gain;
  const at::Tensor d = needed(batch.reference_logprobs, "reference_logprobs", mask) - now;
  return gain + loss.beta * (d.exp() - d - 1.0);
}

at::Tensor per_token(const at::Tensor& logprobs, const Batch& batch, const at::Tensor& mask,
                     const sim::LossSpec& loss) {
  if (loss.kind == "nll") return -counted(logprobs, mask);
  if (loss.kind == "clipped_pg") return clipped_policy_gradient(logprobs, batch, mask, loss);
  throw Error({.kind = ErrorKind::kBadInput,
               .what = fmt::format("loss \"{}\" is unknown", loss.kind),
               .fix = sim::known_names(loss.kind, sim::known_losses())});
}

}  // namespace

at::Tensor dense_logprobs(const at::Tensor& logits, const Batch& batch) {
  const at::Tensor ids = batch.input_ids.to(logits.device());
  const int64_t seq_len = ids.size(1);
  const at::Tensor all = at::log_softmax(logits.to(wider_type(logits.scalar_type())), -1);
  const at::Tensor next = all.narrow(1, 0, seq_len - 1)
                              .gather(-1, ids.narrow(1, 1, seq_len - 1).unsqueeze(-1))
                              .squeeze(-1);
  const at::Tensor first = at::zeros({ids.size(0), 1}, all.options());
  const at::Tensor inside =
      at::arange(seq_len, ids.options()).lt(batch.input_lengths.to(ids.device()).unsqueeze(1));
  const at::Tensor logprobs = at::cat({first, next}, 1);
  return at::where(inside, logprobs, at::zeros_like(logprobs));
}

at::Tensor dense_loss(const at::Tensor& logprobs, const Batch& batch, const sim::LossSpec& loss) {
  const at::Tensor mask = batch.loss_mask().to(logprobs.options());
  const at::Tensor values = per_token(logprobs, batch, mask, loss) * mask;
  if (loss.normalization == "token") {
    const double tokens = mask.sum().item<double>();
    return tokens == 0 ? values.sum() : values.sum() / tokens;
  }
  if (loss.normalization == "sequence") {
    const at::Tensor tokens = mask.sum(1);  // [B]
    const double sequences = tokens.ne(0).sum().item<double>();
    const at::Tensor means = values.sum(1) / at::where(tokens.ne(0), tokens, at::ones_like(tokens));
    return sequences == 0 ? means.sum() : means.sum() / sequences;
  }
  throw Error({.kind = ErrorKind::kBadInput,
               .what = fmt::format("loss normalization \"{}\" is unknown", loss.normalization),
               .fix = "known are token, sequence"});
}

}  // namespace shardproof::golden
