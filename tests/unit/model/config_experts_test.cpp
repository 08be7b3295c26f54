// Legend: a config is a Hugging Face config.json.
#include "model/config_experts.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "model/config_keys.h"
#include "tests/support/said_by.h"

namespace shardproof::config_experts_test {
namespace {

using Json = nlohmann::json;

Json family(const char* name, const char* changes) {
  Json config = Json::parse(R"({"vocab_size": 72, "hidden_size": 32, "intermediate_size": 40,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2})");
  config["model_type"] = name;
  config.update(Json::parse(changes));
  return config;
}

}  // namespace

TEST_CASE("Qwen2-MoE and GPT-OSS are read, with their defaults", "[model][FM-3][FM-8][FM-9]") {
  const Json qwen = family("qwen2_moe", R"({"shared_expert_intermediate_size": 9,
    "moe_intermediate_size": 6, "decoder_sparse_step": 2, "sliding_window": 0,
    "use_sliding_window": false})");
  const ModelConfig shared = ModelConfig::from_json(qwen);
  CHECK(unread_config_keys(qwen).empty());
  CHECK(shared.shared_width == 9);
  CHECK(shared.expert_width == 6);
  CHECK(shared.router.num_experts == 60);
  CHECK(shared.router.num_chosen == 4);
  CHECK_FALSE(shared.router.normalized);
  CHECK_FALSE(shared.has_shared_expert(0));
  CHECK(shared.has_shared_expert(1));
  CHECK(shared.mlp_width("model.layers.1.mlp.shared_expert.up_proj") == 9);
  CHECK(shared.mlp_width("model.layers.0.mlp.up_proj") == 40);
  CHECK(shared.has_bias("self_attn.k_proj"));
  CHECK_FALSE(shared.has_bias("self_attn.o_proj"));
  const ModelConfig plain = ModelConfig::from_json(family("qwen2_moe", R"({"qkv_bias": false})"));
  CHECK_FALSE(plain.has_bias("self_attn.k_proj"));
  CHECK(plain.shared_width == 5632);
  CHECK(plain.expert_width == 1408);

  const ModelConfig oss = ModelConfig::from_json(family("gpt_oss", "{}"));
  CHECK(oss.router.num_experts == 128);
  CHECK(oss.router.num_chosen == 4);
  CHECK(oss.router.scores == RouterScores::kSoftmaxOfChosen);
  CHECK(oss.expert_width == 40);
  CHECK(oss.activation == Activation::kClampedSwiglu);
  CHECK(oss.gate_clamp.alpha == 1.702);
  CHECK(oss.gate_clamp.limit == 7);
  CHECK(oss.has_bias("self_attn.o_proj"));
  CHECK(oss.sliding_window == 128);
  CHECK(oss.sliding_layers == std::vector<bool>{true, false, true, false});
  CHECK(oss.rope_theta == 150000);
  CHECK(oss.rope_scaling.kind == RopeKind::kYarn);
  CHECK(oss.rope_scaling.factor == 32);
  CHECK_FALSE(oss.rope_scaling.truncate);
  CHECK(oss.rope_scaling.attention_factor == Approx(0.1 * std::log(32.0) + 1));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    Json json = family("gpt_oss", R"({"num_local_experts": 8, "num_experts_per_tok": 2,
      "swiglu_limit": 5.0, "swiglu_alpha": 1.5, "attention_bias": false,
      "layer_types": ["full_attention", "full_attention", "sliding_attention",
                      "full_attention"]})");
    json[key] = {
        {"rope_type", "yarn"}, {"factor", 4.0},         {"original_max_position_embeddings", 32},
        {"mscale", 1.0},       {"mscale_all_dim", 0.5}, {"beta_fast", 16.0}};
    const ModelConfig other = ModelConfig::from_json(json);
    CHECK(unread_config_keys(json).empty());
    CHECK(other.router.num_experts == 8);
    CHECK(other.gate_clamp.alpha == 1.5);
    CHECK(other.gate_clamp.limit == 5);
    CHECK_FALSE(other.has_bias("self_attn.o_proj"));
    CHECK(other.sliding_layers == std::vector<bool>{false, false, true, false});
    CHECK(other.rope_scaling.truncate);
    CHECK(other.rope_scaling.beta_fast == 16);
    CHECK(other.rope_scaling.original_max_position_embeddings == 32);
    const double log_factor = 0.1 * std::log(4.0);
    CHECK(other.rope_scaling.attention_factor == Approx((log_factor + 1) / (log_factor / 2 + 1)));
  }
}

TEST_CASE("Options of experts that a family has not are a sentence", "[model][FM-3][FM-9]") {
  const auto says = [](const char* name, const char* changes, const char* said) {
    const auto read = [&] { ModelConfig::from_json(family(name, changes)); };
    CHECK_THAT(tests::said_by(read), Catch::Contains(said));
  };
  says("qwen2_moe", R"({"use_sliding_window": true})",
       "sliding windows of qwen2_moe are not supported");
  says("qwen3_moe", R"({"shared_expert_intermediate_size": 4})",
       "shared_expert_intermediate_size is not an option of qwen3_moe");
  says("qwen3_moe", R"({"qkv_bias": true})", "qkv_bias is not an option of qwen3_moe");
  says("gpt_oss", R"({"sliding_window": null})", "layers have sliding windows");
  says("gpt_oss", R"({"hidden_act": "gelu_pytorch_tanh"})", "supported: silu");
  says("mixtral", R"({"swiglu_limit": 7.0})", "swiglu_limit is not an option of mixtral");
  says("gpt_oss", R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
    "beta_fast": 1.0, "beta_slow": 2.0, "original_max_position_embeddings": 32}})",
       "is not between 0 and beta_fast=1");
  says("deepseek_v3", "{}", "every one of 4 heads");
  says("qwen3_moe", R"({"kv_lora_rank": 4})", "'kv_lora_rank' is not supported");
  says("deepseek_v3", R"({"num_key_value_heads": 4, "scoring_func": "softmax"})",
       "supported: sigmoid");
  says("deepseek_v3", R"({"num_key_value_heads": 4, "num_experts_per_tok": 3})",
       "so that both agree");
}

TEST_CASE("DeepSeek-V3 is read, with its defaults", "[model][FM-4][FM-5][FM-8]") {
  const Json json = family("deepseek_v3", R"({"num_key_value_heads": 4, "n_routed_experts": 16,
    "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4, "moe_intermediate_size": 6,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "q_lora_rank": null, "kv_lora_rank": 9,
    "qk_nope_head_dim": 5, "qk_rope_head_dim": 4, "v_head_dim": 6, "head_dim": 4,
    "scoring_func": "sigmoid", "rope_scaling": {"type": "yarn", "factor": 40.0, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 32}})");
  const ModelConfig config = ModelConfig::from_json(json);
  CHECK(config.router.num_experts == 16);
  CHECK(config.router.num_groups == 4);
  CHECK(config.router.chosen_groups == 2);
  CHECK(config.router.scores == RouterScores::kSigmoid);
  CHECK(config.router.normalized);
  CHECK(config.router.scaling == 2.5);
  CHECK(config.router.selection_bias);
  CHECK(config.shared_width == 12);
  CHECK(config.expert_layers == std::vector<bool>{false, true, true, true});
  CHECK(config.latent.q_rank == 0);
  CHECK(config.latent.kv_rank == 9);
  CHECK(config.latent.interleaved);
  CHECK(config.head_dim == 9);
  CHECK(config.rotary_dim() == 4);
  CHECK(config.value_dim() == 6);
  CHECK(config.rope_scaling.attention_factor == 1);
  const double magnitude = 0.1 * std::log(40.0) + 1;
  CHECK(config.score_scale() == Approx(magnitude * magnitude / 3));
  CHECK(ModelConfig::from_json(family("deepseek_v3", R"({"num_key_value_heads": 4})"))
            .latent.q_rank == 1536);
}

}  // namespace shardproof::config_experts_test
