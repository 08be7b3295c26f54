// The routers of Hugging Face transformers, stored by golden/hf/make_routers.py, against the rules
// of src/model/moe and against the golden's.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "golden/dense_routes.h"
#include "model/moe/selection.h"
#include "tensor/safetensors.h"
#include "tests/unit/model/moe/rules.h"

namespace shardproof::tests {
namespace {

struct StoredCase {
  std::string name;
  RouterRule rule;
};

const std::vector<StoredCase>& stored_cases() {
  static const std::vector<StoredCase> cases = {
      {"mixtral", {.num_experts = 6, .num_chosen = 2}},
      {"mixtral",
       {.num_experts = 6,
        .num_chosen = 2,
        .scores = RouterScores::kSoftmaxOfAll,
        .normalized = true}},
      {"qwen3_moe.plain",
       {.num_experts = 9, .num_chosen = 4, .scores = RouterScores::kSoftmaxOfAll}},
      {"qwen3_moe.norm",
       {.num_experts = 9,
        .num_chosen = 4,
        .scores = RouterScores::kSoftmaxOfAll,
        .normalized = true}},
      {"gpt_oss", {.num_experts = 8, .num_chosen = 3}},
      {"deepseek_v2",
       {.num_experts = 12,
        .num_chosen = 3,
        .scores = RouterScores::kSoftmaxOfAll,
        .scaling = 1.5,
        .num_groups = 3,
        .chosen_groups = 2,
        .group_score = GroupScore::kBest}},
      {"deepseek_v3.plain",
       {.num_experts = 12,
        .num_chosen = 4,
        .scores = RouterScores::kSigmoid,
        .scaling = 2.5,
        .num_groups = 4,
        .chosen_groups = 2,
        .selection_bias = true}},
      {"deepseek_v3.norm",
       {.num_experts = 12,
        .num_chosen = 4,
        .scores = RouterScores::kSigmoid,
        .normalized = true,
        .scaling = 2.5,
        .num_groups = 4,
        .chosen_groups = 2,
        .selection_bias = true}},
  };
  return cases;
}

SafetensorsFile stored() { return SafetensorsFile::open("golden/hf/routers.safetensors"); }

}  // namespace

TEST_CASE("Rules and golden give the ids, weights and gradients of transformers",
          "[moe][MR-2][MR-4]") {
  const SafetensorsFile file = stored();
  for (const auto& [name, rule] : stored_cases()) {
    INFO(name);
    const auto get = [&, prefix = name + "."](const char* part) { return file.get(prefix + part); };
    const at::Tensor bias = rule.selection_bias ? get("bias") : at::Tensor();
    const at::Tensor ids = get("ids");

    const at::Tensor logits = get("logits").clone().requires_grad_();
    CHECK(at::equal(select_experts(logits, bias, rule).ids, ids));
    const at::Tensor weights = route_weights(logits, ids, rule);
    CHECK(at::allclose(weights, get("weights"), 0, kAgreement));
    weights.backward(get("grad"));
    CHECK(at::allclose(logits.grad(), get("grad_logits"), 0, kAgreement));

    const at::Tensor dense = get("logits").clone().requires_grad_();
    const at::Tensor chosen = golden::choose_experts(dense, bias, rule).chosen;
    CHECK(at::equal(chosen, at::zeros_like(chosen).scatter(1, ids, true)));
    const at::Tensor mixture = golden::mixture_weights(dense, chosen, rule);
    CHECK(at::allclose(mixture.gather(1, ids), get("weights"), 0, kAgreement));
    mixture.backward(at::zeros_like(mixture).scatter(1, ids, get("grad")));
    CHECK(at::allclose(dense.grad(), get("grad_logits"), 0, kAgreement));
  }
}

}  // namespace shardproof::tests
