// How a router chooses the experts of a token and weighs what they return. No LibTorch here.
//
// Legend: N experts, K experts chosen per token, G groups of N / G consecutive experts.
//
// Sources: NVIDIA/Megatron-LM megatron/core/transformer/moe/moe_utils.py,
// topk_routing_with_score_function and group_limited_topk; huggingface/transformers 5.23,
// MixtralTopKRouter, Qwen3MoeTopKRouter, GptOssTopKRouter, DeepseekV2TopkRouter and
// DeepseekV3TopkRouter.
#pragma once

#include <array>
#include <cstdint>

#include "base/families.h"

namespace shardproof {

// The score of a group, from the selection scores of its experts.
enum class GroupScore { kBestTwo, kBest };  // the sum of the two best (deepseek_v3); the best one
constexpr std::array<const char*, 2> names_of(GroupScore) { return {"best_two", "best"}; }

struct RouterRule {
  int64_t num_experts = 0;
  int64_t num_chosen = 0;
  RouterScores scores = RouterScores::kSoftmaxOfChosen;
  bool normalized = false;  // the K weights are divided by their sum (norm_topk_prob)
  double scaling = 1.0;     // then multiplied by this (routed_scaling_factor)
  // Of G groups the best `chosen_groups` stay; the experts of others are never chosen.
  int64_t num_groups = 1, chosen_groups = 1;
  GroupScore group_score = GroupScore::kBestTwo;
  // A bias of each expert is added to its score for the selection alone
  // (e_score_correction_bias).
  bool selection_bias = false;
  // Error(kRefused) where what was chosen exceeds what was left out by less; 0: never. Ranks that
  // make a reference have it.
  double least_margin = 0;
};

// Throws Error(kBadInput) for sizes that contradict each other, and Error(kRefused) for a rule that
// has no router gradient (softmax of one chosen logit) or that Megatron-LM and Hugging Face compute
// differently (two best scores of a group where K / chosen_groups is not 2).
void check_router_rule(const RouterRule& rule);

}  // namespace shardproof
