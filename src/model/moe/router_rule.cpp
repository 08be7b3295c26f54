#include "model/moe/router_rule.h"

#include <fmt/format.h>

#include "base/error.h"

namespace shardproof {
namespace {

void check_groups(const RouterRule& rule) {
  const int64_t groups = rule.num_groups, chosen = rule.chosen_groups, experts = rule.num_experts;
  if (groups < 1 || experts % groups != 0) {
    throw_bad_input(
        fmt::format("{} experts do not split into {} groups of equal size", experts, groups),
        "choose a number of groups (n_group) that divides the number of experts");
  }
  if (chosen < 1 || chosen > groups) {
    throw_bad_input(fmt::format("{} of {} groups of experts cannot be chosen", chosen, groups),
                    fmt::format("set topk_group to a number from 1 to {}", groups));
  }
  const int64_t left = chosen * (experts / groups);
  if (rule.num_chosen > left) {
    throw_bad_input(fmt::format("{} experts per token are more than the {} of {} chosen groups",
                                rule.num_chosen, left, chosen),
                    "choose more groups (topk_group), or fewer experts per token");
  }
  if (groups == 1 || rule.group_score != GroupScore::kBestTwo) return;
  if (experts / groups < 2) {
    throw_bad_input(fmt::format("{} groups of {} experts have one expert each, but the score of a "
                                "group is the sum of its two best",
                                groups, experts),
                    "choose fewer groups (n_group)");
  }
  if (rule.num_chosen != 2 * chosen) {
    throw_refused(
        fmt::format("with {} experts per token from {} groups, Megatron-LM scores a group by its "
                    "{} best experts and Hugging Face by its 2 best",
                    rule.num_chosen, chosen, rule.num_chosen / chosen),
        fmt::format("choose {} experts per token, so that both agree", 2 * chosen));
  }
}

}  // namespace

void check_router_rule(const RouterRule& rule) {
  if (rule.num_chosen < 1 || rule.num_chosen > rule.num_experts) {
    throw_bad_input(
        fmt::format("{} of {} experts cannot be chosen for a token", rule.num_chosen,
                    rule.num_experts),
        fmt::format("set num_experts_per_tok to a number from 1 to {}", rule.num_experts));
  }
  check_groups(rule);
  if (rule.scores != RouterScores::kSoftmaxOfChosen) return;
  if (rule.num_chosen == 1) {
    throw_refused("the softmax of one chosen logit is 1, so that the router gets no gradient",
                  "choose 2 experts per token, or a softmax over all experts");
  }
  if (rule.selection_bias) {
    throw_refused("a selection bias is not defined for a softmax of the chosen logits",
                  "use sigmoid scores, or a softmax over all experts");
  }
}

}  // namespace shardproof
