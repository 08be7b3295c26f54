#include "golden/dense_side_losses.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "golden/dense_routes.h"

namespace shardproof::golden {
namespace {

at::Tensor rows_of(const at::Tensor& all, const std::vector<int64_t>& groups, int64_t group) {
  std::vector<at::Tensor> rows;
  for (size_t t = 0; t < groups.size(); ++t) {
    if (groups[t] == group) rows.push_back(all[static_cast<int64_t>(t)]);
  }
  return at::stack(rows);
}

// The mean of loss(group, its rows) over the groups; those below 0 are none.
template <class Loss>
at::Tensor mean_over_groups(const at::Tensor& logits, const std::vector<int64_t>& groups,
                            const Loss& loss) {
  std::set<int64_t> real(groups.begin(), groups.end());
  while (!real.empty() && *real.begin() < 0) real.erase(real.begin());
  at::Tensor sum = at::zeros({}, logits.options());
  for (const int64_t group : real) sum = sum + loss(group, rows_of(logits, groups, group));
  return real.empty() ? sum : sum / static_cast<double>(real.size());
}

// [T, N] of 0 and 1: the K best probabilities of each token.
at::Tensor best_of(const at::Tensor& logits, const RouterRule& rule) {
  const RouterRule plain{.num_experts = rule.num_experts, .num_chosen = rule.num_chosen};
  return choose_experts(logits, {}, plain).chosen.to(at::kDouble);
}

}  // namespace

at::Tensor dense_scores(const at::Tensor& logits, const RouterRule& rule) {
  const at::Tensor powers = rule.scores == RouterScores::kSigmoid
                                ? 1 / (1 + (-logits).exp())
                                : (logits - std::get<0>(logits.detach().max(1, true))).exp();
  return powers / powers.sum(1, /*keepdim=*/true);
}

at::Tensor dense_balancing_loss(const at::Tensor& logits, const std::vector<int64_t>& groups,
                                const RouterRule& rule) {
  return mean_over_groups(logits, groups, [&](int64_t, const at::Tensor& rows) {
    const at::Tensor fractions = best_of(rows, rule).mean(0) / rule.num_chosen;
    return (fractions * dense_scores(rows, rule).mean(0)).sum() * rule.num_experts;
  });
}

at::Tensor dense_balancing_loss_so_far(const at::Tensor& logits, const std::vector<int64_t>& groups,
                                       const std::vector<int64_t>& moments,
                                       const RouterRule& rule) {
  return mean_over_groups(logits, groups, [&](int64_t group, const at::Tensor& rows) {
    const size_t first = static_cast<size_t>(std::ranges::find(groups, group) - groups.begin());
    std::vector<int64_t> so_far;
    for (const int64_t moment : moments) {
      so_far.push_back(moment >= 0 && moment <= moments[first] ? 0 : -1);
    }
    const at::Tensor fractions = best_of(rows_of(logits, so_far, 0), rule).mean(0);
    const at::Tensor means = dense_scores(rows, rule).mean(0);
    return (fractions * means).sum() * rule.num_experts / rule.num_chosen;
  });
}

at::Tensor dense_z_loss(const at::Tensor& logits, const std::vector<int64_t>& groups) {
  return mean_over_groups(logits, groups, [](int64_t, const at::Tensor& rows) {
    const at::Tensor logs = rows.exp().sum(1).log();
    return (logs * logs).mean();
  });
}

at::Tensor dense_pooled_loss(const std::vector<at::Tensor>& logits,
                             const std::vector<int64_t>& groups, const RouterRule& rule) {
  std::vector<at::Tensor> kept;
  for (const at::Tensor& layer : logits) {
    for (size_t t = 0; t < groups.size(); ++t) {
      if (groups[t] >= 0) kept.push_back(layer[static_cast<int64_t>(t)]);
    }
  }
  const at::Tensor rows = at::stack(kept);
  return (best_of(rows, rule).mean(0) * dense_scores(rows, rule).mean(0)).sum() * rule.num_experts;
}

std::vector<double> dense_bias_update(std::vector<double> bias, const std::vector<int64_t>& counts,
                                      const BiasRule& rule) {
  double total = 0, mean_sign = 0;
  std::vector<double> signs;
  for (const int64_t count : counts) total += static_cast<double>(count);
  const double average = total / static_cast<double>(counts.size());
  for (const int64_t count : counts) {
    const double difference = average - static_cast<double>(count);
    signs.push_back(difference > 0 ? 1 : difference < 0 ? -1 : 0);
    mean_sign += signs.back() / static_cast<double>(counts.size());
  }
  for (size_t i = 0; i < bias.size(); ++i) {
    bias[i] += rule.rate * (signs[i] - (rule.centered ? mean_sign : 0));
  }
  return bias;
}

}  // namespace shardproof::golden
