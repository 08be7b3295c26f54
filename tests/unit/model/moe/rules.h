// Router rules and logits for the tests of src/model/moe.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <vector>

#include "model/moe/router_rule.h"

namespace shardproof::tests {

constexpr double kAgreement = 1e-14;  // of values around 1

inline at::Tensor numbers(const std::vector<int64_t>& values) {
  return at::tensor(values, at::kLong);
}

inline at::Tensor drawn(at::IntArrayRef shape, int64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::dtype(at::kDouble));
}

// Integers from 0 to `most`, so that many scores are equal.
inline at::Tensor drawn_integers(at::IntArrayRef shape, int64_t most, int64_t seed) {
  return at::randint(most + 1, shape, at::detail::createCPUGenerator(seed), at::dtype(at::kLong))
      .to(at::kDouble);
}

// Every kind of scores, with and without a norm, a bias and groups of both kinds.
inline std::vector<RouterRule> all_rules() {
  std::vector<RouterRule> rules;
  for (const auto scores :
       {RouterScores::kSoftmaxOfChosen, RouterScores::kSoftmaxOfAll, RouterScores::kSigmoid}) {
    const bool of_chosen = scores == RouterScores::kSoftmaxOfChosen;
    for (const bool normalized : {false, true}) {
      for (const bool bias : {false, !of_chosen}) {
        const RouterRule plain{.num_experts = 12,
                               .num_chosen = 4,
                               .scores = scores,
                               .normalized = normalized,
                               .scaling = normalized ? 2.5 : 1.0,
                               .selection_bias = bias};
        RouterRule all = plain, groups = plain, best = plain, one = plain;
        all.num_chosen = all.num_experts;
        groups.num_groups = 4, groups.chosen_groups = 2;
        best.num_groups = 3, best.chosen_groups = 2, best.num_chosen = 5;
        best.group_score = GroupScore::kBest;
        one.num_chosen = of_chosen ? 2 : 1;
        rules.insert(rules.end(), {plain, all, groups, best, one});
      }
    }
  }
  return rules;
}

}  // namespace shardproof::tests
