#include "golden/dense_routes.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/expert_choices.h"

namespace shardproof::golden {
namespace {

using Scores = std::vector<double>;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Which of the candidates are among the `count` best.
std::vector<bool> best(const Scores& scores, const std::vector<bool>& candidates, int64_t count) {
  std::vector<bool> chosen(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    int64_t better = 0;
    for (size_t j = 0; j < scores.size(); ++j) {
      better += candidates[j] && (scores[j] > scores[i] || (scores[j] == scores[i] && j < i));
    }
    chosen[i] = candidates[i] && better < count;
  }
  return chosen;
}

// The least score of those chosen less the greatest of the other candidates.
double margin_of(const Scores& scores, const std::vector<bool>& candidates,
                 const std::vector<bool>& chosen) {
  double worst = kInfinity, next = -kInfinity;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (chosen[i]) {
      worst = std::min(worst, scores[i]);
    } else if (candidates[i]) {
      next = std::max(next, scores[i]);
    }
  }
  return worst - next;
}

double group_score(const Scores& scores, size_t first, size_t size, GroupScore kind) {
  double sum = -kInfinity;
  for (size_t i = first; i < first + size; ++i) {
    if (kind == GroupScore::kBest) sum = std::max(sum, scores[i]);
    for (size_t j = first; j < i && kind == GroupScore::kBestTwo; ++j) {
      sum = std::max(sum, scores[i] + scores[j]);
    }
  }
  return sum;
}

Scores selection_scores(const double* logits, const double* bias, const RouterRule& rule) {
  const size_t count = static_cast<size_t>(rule.num_experts);
  Scores scores(logits, logits + count);
  double greatest = -kInfinity, sum = 0;
  for (const double logit : scores) greatest = std::max(greatest, logit);
  for (const double logit : scores) sum += std::exp(logit - greatest);
  for (double& score : scores) {
    if (rule.scores == RouterScores::kSigmoid) score = 1 / (1 + std::exp(-score));
    if (rule.scores == RouterScores::kSoftmaxOfAll) score = std::exp(score - greatest) / sum;
  }
  for (size_t i = 0; bias != nullptr && i < count; ++i) scores[i] += bias[i];
  return scores;
}

}  // namespace

DenseRoutes choose_experts(const at::Tensor& logits, const at::Tensor& bias,
                           const RouterRule& rule) {
  const at::Tensor wide = logits.detach().to(at::kDouble).contiguous();
  const at::Tensor wide_bias = bias.defined() ? bias.to(at::kDouble).contiguous() : bias;
  const int64_t tokens = wide.size(0), experts = rule.num_experts;
  DenseRoutes routes{.chosen = at::zeros({tokens, experts}, at::kBool),
                     .margin = at::zeros({tokens}, at::kDouble)};
  const size_t group_count = static_cast<size_t>(rule.num_groups);
  const size_t group_size = static_cast<size_t>(experts / rule.num_groups);
  for (int64_t t = 0; t < tokens; ++t) {
    const Scores scores =
        selection_scores(wide.data_ptr<double>() + t * experts,
                         bias.defined() ? wide_bias.data_ptr<double>() : nullptr, rule);
    std::vector<bool> candidates(scores.size(), true);
    double margin = kInfinity;
    if (group_count > 1) {
      Scores groups;
      for (size_t g = 0; g < group_count; ++g) {
        groups.push_back(group_score(scores, g * group_size, group_size, rule.group_score));
      }
      const std::vector<bool> all(group_count, true), stay = best(groups, all, rule.chosen_groups);
      margin = margin_of(groups, all, stay);
      for (size_t i = 0; i < scores.size(); ++i) candidates[i] = stay[i / group_size];
    }
    const std::vector<bool> chosen = best(scores, candidates, rule.num_chosen);
    margin = std::min(margin, margin_of(scores, candidates, chosen));
    for (size_t i = 0; i < scores.size(); ++i) {
      routes.chosen.data_ptr<bool>()[t * experts + static_cast<int64_t>(i)] = chosen[i];
    }
    routes.margin.data_ptr<double>()[t] = margin;
  }
  return routes;
}

void see_margins(const std::string& name, const at::Tensor& margins, at::ScalarType type,
                 const StepContext& context) {
  for (int64_t t = 0; t < margins.size(0); ++t) {
    const double margin = margins.data_ptr<double>()[t];
    if (margin >= kLeastMargin) continue;
    throw_refused(
        fmt::format("{} chooses for token {} between two scores that differ by {:.1e}, so that "
                    "roundings could decide",
                    name, t, margin),
        "choose another seed");
  }
  if (type != at::kDouble || !context.probe.listens(Phase::kRecompute)) return;
  context.probe.observe({.kind = ObservationKind::kOutput,
                         .name = name + ".margin",
                         .phase = Phase::kRecompute,
                         .step = context.step,
                         .tensor = margins.view(context.token_map.sizes()),
                         .token_map = context.token_map});
}

at::Tensor mixture_weights(const at::Tensor& logits, const at::Tensor& chosen,
                           const RouterRule& rule) {
  const at::Tensor one = chosen.to(logits.scalar_type());
  at::Tensor weights;
  if (rule.scores == RouterScores::kSigmoid) {
    weights = one / (1 + (-logits).exp());
    if (rule.normalized) weights = weights / (weights.sum(1, /*keepdim=*/true) + 1e-20);
  } else {
    // Both softmaxes are quotients of the same powers: over the chosen ones, or over all.
    const at::Tensor powers = (logits - std::get<0>(logits.detach().max(1, true))).exp();
    const bool over_chosen = rule.scores == RouterScores::kSoftmaxOfChosen || rule.normalized;
    weights = powers * one / (over_chosen ? powers * one : powers).sum(1, /*keepdim=*/true);
  }
  return weights * rule.scaling;
}

}  // namespace shardproof::golden
