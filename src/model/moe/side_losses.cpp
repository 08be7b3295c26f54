#include "model/moe/side_losses.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "tensor/function.h"

namespace shardproof {
namespace {

// [G, ..] sums of rows [T, ..] by group.
at::Tensor sums_by_group(const at::Tensor& rows, const at::Tensor& groups, int64_t group_count) {
  std::vector<int64_t> shape = rows.sizes().vec();
  shape[0] = group_count;
  const at::Tensor real = groups.ge(0).nonzero().view({-1});
  return at::zeros(shape, rows.options())
      .index_add(0, groups.index({real}), rows.index_select(0, real));
}

at::Tensor tokens_by_group(const at::Tensor& groups, int64_t group_count) {
  return sums_by_group(at::ones_like(groups), groups, group_count);
}

// A group without tokens divides sums of 0 by 1.
at::Tensor divisor(const at::Tensor& tokens, const at::Tensor& like) {
  return tokens.clamp_min(1).to(like.scalar_type()).unsqueeze(-1);
}

struct SideLossFunction : Function<SideLossFunction> {
  static at::Tensor forward(FunctionContext* ctx, const at::Tensor& carrier,
                            const at::Tensor& /*value*/, const at::Tensor& gradient) {
    ctx->saved_data["gradient"] = gradient;  // not a saved variable, which nobody may write to
    return carrier;
  }

  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    return {grads[0], ctx->saved_data["gradient"].toTensor(), at::Tensor()};
  }
};

}  // namespace

BalancingSums balancing_sums(const at::Tensor& logits, const at::Tensor& groups,
                             int64_t group_count, const RouterRule& rule) {
  at::Tensor scores;
  if (rule.scores == RouterScores::kSigmoid) {
    const at::Tensor sigmoids = logits.sigmoid();
    scores = sigmoids / (sigmoids.sum(-1, /*keepdim=*/true) + 1e-20);
  } else {
    scores = logits.softmax(-1);
  }
  const at::Tensor best = scores.detach()
                              .argsort(/*stable=*/true, /*dim=*/-1, /*descending=*/true)
                              .narrow(-1, 0, rule.num_chosen);
  const at::Tensor routes = at::zeros_like(scores, at::kLong).scatter(-1, best, 1);
  return {.counts = sums_by_group(routes, groups, group_count),
          .scores = sums_by_group(scores, groups, group_count),
          .tokens = tokens_by_group(groups, group_count)};
}

at::Tensor balancing_losses(const BalancingSums& sums, const RouterRule& rule) {
  const at::Tensor tokens = divisor(sums.tokens, sums.scores);
  const at::Tensor fractions = sums.counts / (tokens * rule.num_chosen);
  return (fractions * sums.scores / tokens).sum(-1) * rule.num_experts;
}

at::Tensor balancing_losses_of_counts(const BalancingSums& sums, const at::Tensor& counts,
                                      int64_t tokens, const RouterRule& rule) {
  SHARDPROOF_ASSERT(tokens > 0, "counts of other ranks include this rank's tokens");
  const at::Tensor fractions =
      counts.to(sums.scores.scalar_type()) / static_cast<double>(tokens * rule.num_chosen);
  const at::Tensor means = sums.scores / divisor(sums.tokens, sums.scores);
  return (fractions * means).sum(-1) * rule.num_experts;
}

at::Tensor pooled_balancing_loss(const std::vector<BalancingSums>& layers, const RouterRule& rule) {
  BalancingSums all{.counts = layers.at(0).counts.sum(0, true),
                    .scores = layers[0].scores.sum(0, true),
                    .tokens = layers[0].tokens.sum(0, true)};
  for (size_t i = 1; i < layers.size(); ++i) {
    all.counts = all.counts + layers[i].counts.sum(0, true);
    all.scores = all.scores + layers[i].scores.sum(0, true);
    all.tokens = all.tokens + layers[i].tokens.sum(0, true);
  }
  return balancing_losses(all, rule).sum() * rule.num_chosen;
}

at::Tensor z_losses(const at::Tensor& logits, const at::Tensor& groups, int64_t group_count) {
  const at::Tensor squares = logits.logsumexp(-1).square();
  const at::Tensor tokens = tokens_by_group(groups, group_count);
  return sums_by_group(squares, groups, group_count) / tokens.clamp_min(1).to(logits.scalar_type());
}

at::Tensor with_side_loss(const at::Tensor& carrier, const at::Tensor& loss, double factor) {
  return with_later_gradient(carrier, loss, at::full_like(loss.detach(), factor));
}

at::Tensor with_later_gradient(const at::Tensor& carrier, const at::Tensor& value,
                               const at::Tensor& gradient) {
  return SideLossFunction::apply(carrier, value, gradient);
}

}  // namespace shardproof
