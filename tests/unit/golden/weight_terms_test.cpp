// What is watched of the gradients of weights, beside the gradients that autograd leaves.
#include "golden/weight_terms.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "golden/written_out.h"
#include "mesh/mesh.h"

namespace shardproof::golden {
namespace {

ModelConfig small_config(const std::string& family) {
  ModelConfig config;
  config.family = family;
  config.vocab_size = 11;
  config.hidden_size = 8;
  config.intermediate_size = 6;
  config.num_hidden_layers = 1;
  config.num_attention_heads = config.num_key_value_heads = 2;
  config.head_dim = 4;
  const FamilyTraits& traits = config.traits();
  if (!traits.has_experts()) return config;
  config.router = {.num_experts = 3, .num_chosen = 2};
  config.expert_width = 5;
  config.expert_layers = {true};
  config.attention_bias = traits.attention_bias;
  if (traits.clamped_experts) config.activation = Activation::kClampedSwiglu;
  if (traits.scores == RouterScores::kSigmoid) {
    config.router.scores = RouterScores::kSigmoid;
    config.router.selection_bias = true;
  }
  if (traits.latent_attention) {
    config.latent = {.q_rank = 5, .kv_rank = 4, .nope = 3, .rope = 2, .value = 7};
    config.head_dim = 5;
  }
  if (traits.shared_expert_intermediate_size > 0 || traits.shared_by_count) config.shared_width = 5;
  return config;
}

// Trains the parameter whose name ends so, and no other one. `in_positions`: no position has the
// whole gradient.
void check_watch(const ModelConfig& config, const std::string& trained, bool in_positions) {
  CAPTURE(config.family, trained);
  Decoder model(config, seeded_weights(config, 3));
  write_out(model);
  bool alone = true;  // no other parameter of the layer counts
  for (const Slot* slot : model.slots()) {
    const auto parameters = slot->layer->parameters();
    for (const ParameterPtr& parameter : parameters) {
      if (parameter->name.ends_with(trained)) alone = parameters.size() == 1;
    }
  }
  for (const ParameterPtr& parameter : model.parameters()) {
    parameter->trainable = parameter->name.ends_with(trained);
  }
  const auto terms = watch_weight_terms(model);
  model.materialise(Mesh(), 0, at::kDouble, at::kCPU);
  at::Tensor* weight = nullptr;
  for (const ParameterPtr& parameter : model.parameters()) {
    if (parameter->trainable) weight = &parameter->tensor;
  }
  REQUIRE(weight != nullptr);
  NoProbe nobody;
  const at::Tensor ids = at::arange(10, at::kLong).remainder(3).view({2, 5});
  const auto largest_gradient = [&](double scale) {
    terms->reset();
    weight->mutable_grad() = at::Tensor();
    const at::Tensor out =
        model.forward(ids, {.probe = nobody, .positions = at::arange(5, at::kLong).expand_as(ids)});
    (out.log_softmax(-1).select(-1, 1).sum() * scale).backward();
    return weight->grad().abs().max().item<double>();
  };
  const double one = largest_gradient(1);
  REQUIRE(one > 0);
  CHECK(terms->most >= one);
  CHECK_FALSE(terms->overflows);
  // Just below the largest number of float16, and just above it.
  for (const double share : {0.999, 1.001}) {
    const double largest = largest_gradient(share * kLargestHalf / one);
    CHECK(terms->most >= largest);
    if (share > 1) CHECK(terms->overflows);
    if (!alone) continue;
    CHECK(terms->overflows == (share > 1));
    // Of sixteen ranks that share the positions none has the whole sum.
    if (in_positions) CHECK(terms->only_as_summed() == (share > 1));
  }
}

}  // namespace

TEST_CASE("The watch tells which gradient overflows only as it is summed", "[golden]") {
  const ModelConfig config = small_config("qwen3");
  for (const char* trained :
       {"q_norm.weight", "k_norm.weight", "input_layernorm.weight", "model.norm.weight",
        "q_proj.weight", "embed_tokens.weight", "lm_head.weight"}) {
    check_watch(config, trained, true);
  }
  const ModelConfig oss = small_config("gpt_oss");
  for (const char* trained :
       {"self_attn.sinks", "experts.gate_up_proj", "experts.gate_up_proj_bias", "experts.down_proj",
        "experts.down_proj_bias", "router.weight", "router.bias"}) {
    check_watch(oss, trained, true);
  }
}

TEST_CASE("The watch tells that a share of positions overflows where the whole sum does not",
          "[golden]") {
  const ModelConfig config = small_config("qwen3");
  Decoder model(config, seeded_weights(config, 3));
  write_out(model);
  for (const ParameterPtr& parameter : model.parameters()) {
    parameter->trainable = parameter->name == "lm_head.weight";
  }
  const auto terms = watch_weight_terms(model);
  model.materialise(Mesh(), 0, at::kDouble, at::kCPU);
  NoProbe nobody;
  // One token everywhere, so that positions differ by the sign of their loss alone.
  const at::Tensor ids = at::full({1, 4}, 5, at::kLong);
  const at::Tensor positions = at::arange(4, at::kLong).view({1, 4});
  const at::Tensor signs = at::tensor({1.0, 1.0, -1.0, -1.0}, at::kDouble).view({1, 4});
  const auto watched = [&](double scale) {
    terms->reset();
    const at::Tensor out = model.forward(ids, {.probe = nobody, .positions = positions});
    ((out.select(-1, 1) * signs).sum() * scale).backward();
    return *terms;
  };
  CHECK_FALSE(watched(1).shares_overflow);
  const WeightTerms large = watched(10 * kLargestHalf);
  CHECK(large.shares_overflow);
  CHECK_FALSE(large.overflows);
}

TEST_CASE("The watch knows every parameter that a family trains", "[golden]") {
  std::vector<std::string> families;
  for (const FamilyTraits& family : all_families()) {
    const bool has_more = family.own_score_scale || family.extra_heads.value_or(0) > 0;
    if (!has_more) families.emplace_back(family.name);
  }
  const std::string family = GENERATE_COPY(from_range(families));
  const ModelConfig config = small_config(family);
  const Decoder model(config, seeded_weights(config, 3));
  for (const ParameterPtr& parameter : model.parameters()) {
    if (parameter->trainable) check_watch(config, parameter->name, false);
  }
}

}  // namespace shardproof::golden
