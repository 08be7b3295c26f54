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

RouterRule rule_of(int64_t num_experts, int64_t num_chosen, RouterScores scores,
                   bool normalized = false) {
  return {.num_experts = num_experts,
          .num_chosen = num_chosen,
          .scores = scores,
          .normalized = normalized};
}

std::vector<StoredCase> stored_cases() {
  constexpr RouterScores kChosen = RouterScores::kSoftmaxOfChosen,
                         kAll = RouterScores::kSoftmaxOfAll, kSigmoid = RouterScores::kSigmoid;
  RouterRule v2 = rule_of(12, 3, kAll), v3 = rule_of(12, 4, kSigmoid);
  v2.scaling = 1.5;
  v2.num_groups = 3;
  v2.group_score = GroupScore::kBest;
  v3.scaling = 2.5;
  v3.num_groups = 4;
  v3.selection_bias = true;
  v2.chosen_groups = v3.chosen_groups = 2;
  RouterRule v3_normalized = v3;
  v3_normalized.normalized = true;
  return {{"mixtral", rule_of(6, 2, kChosen)},
          {"mixtral", rule_of(6, 2, kAll, /*normalized=*/true)},
          {"qwen3_moe.plain", rule_of(9, 4, kAll)},
          {"qwen3_moe.norm", rule_of(9, 4, kAll, /*normalized=*/true)},
          {"gpt_oss", rule_of(8, 3, kChosen)},
          {"deepseek_v2", v2},
          {"deepseek_v3.plain", v3},
          {"deepseek_v3.norm", v3_normalized}};
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
