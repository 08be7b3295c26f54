#include "model/moe/selection.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <limits>

#include "base/error.h"

namespace shardproof {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Without it, a token whose scores are all 0 would have weights of 0 / 0. Megatron-LM and Hugging
// Face add it to sigmoid scores alone.
constexpr double kLeastSum = 1e-20;

struct Best {
  at::Tensor ids;     // [.., count], the best first
  at::Tensor margin;  // [..]
};

Best best_of(const at::Tensor& scores, int64_t count) {
  const auto [sorted, order] = at::sort(scores, /*stable=*/true, /*dim=*/-1, /*descending=*/true);
  const at::Tensor last = sorted.select(-1, count - 1);
  const at::Tensor margin =
      count == scores.size(-1) ? at::full_like(last, kInfinity) : last - sorted.select(-1, count);
  return {.ids = order.narrow(-1, 0, count), .margin = margin};
}

// [.., G] of selection scores [.., N].
at::Tensor group_scores(const at::Tensor& scores, const RouterRule& rule) {
  const at::Tensor groups = scores.unflatten(-1, {rule.num_groups, -1});
  if (rule.group_score == GroupScore::kBest) return groups.amax(-1);
  return std::get<0>(groups.topk(2, -1)).sum(-1);
}

// [.., N]: true for the experts of groups that were not chosen.
at::Tensor outside(const at::Tensor& chosen_groups, const at::Tensor& scores,
                   const RouterRule& rule) {
  std::vector<int64_t> shape = scores.sizes().vec();
  shape.back() = rule.num_groups;
  const at::Tensor left_out = at::ones(shape, scores.options().dtype(at::kBool));
  return left_out.scatter(-1, chosen_groups, false)
      .repeat_interleave(rule.num_experts / rule.num_groups, -1);
}

at::Tensor scores_of(const at::Tensor& logits, const RouterRule& rule) {
  if (rule.scores == RouterScores::kSoftmaxOfAll) return logits.softmax(-1);
  return rule.scores == RouterScores::kSigmoid ? logits.sigmoid() : logits;
}

}  // namespace

Selection select_experts(const at::Tensor& logits, const at::Tensor& bias, const RouterRule& rule,
                         const at::Tensor& real) {
  SHARDPROOF_ASSERT(bias.defined() == rule.selection_bias, "the rule says whether there is a bias");
  const at::NoGradGuard no_grad;
  at::Tensor scores = scores_of(logits, rule);
  if (bias.defined()) scores = scores + bias.to(scores.scalar_type());
  Selection selection;
  if (rule.num_groups > 1) {
    const Best groups = best_of(group_scores(scores, rule), rule.chosen_groups);
    scores = scores.masked_fill(outside(groups.ids, scores, rule), -kInfinity);
    selection.margin = groups.margin;
  }
  const Best experts = best_of(scores, rule.num_chosen);
  selection.ids = std::get<0>(experts.ids.sort(-1));
  selection.margin =
      selection.margin.defined() ? at::minimum(selection.margin, experts.margin) : experts.margin;
  if (real.defined()) {
    selection.ids = selection.ids.masked_fill(real.logical_not().unsqueeze(-1), -1);
    selection.margin = selection.margin.masked_fill(real.logical_not(), kInfinity);
  }
  refuse_near(selection.margin, rule.least_margin, "a router chooses between two scores that");
  return selection;
}

void refuse_near(const at::Tensor& margins, double least, const char* what) {
  if (!(least > 0) || margins.numel() == 0) return;
  const double nearest = margins.abs().min().item<double>();
  if (!(nearest < least)) return;
  throw_refused(fmt::format("{} differ by {:.1e}, so that roundings could decide", what, nearest),
                "choose another seed");
}

at::Tensor route_weights(const at::Tensor& logits, const at::Tensor& ids, const RouterRule& rule) {
  const at::Tensor chosen = scores_of(logits, rule).gather(-1, ids.clamp_min(0));
  at::Tensor weights = rule.scores == RouterScores::kSoftmaxOfChosen ? chosen.softmax(-1) : chosen;
  if (rule.normalized) {
    const at::Tensor sum = weights.sum(-1, /*keepdim=*/true);
    weights = weights / (rule.scores == RouterScores::kSigmoid ? sum + kLeastSum : sum);
  }
  if (rule.scaling != 1.0) weights = weights * rule.scaling;
  return weights.masked_fill(ids.lt(0), 0);
}

}  // namespace shardproof
