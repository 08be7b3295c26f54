#include "base/families.h"

#include <algorithm>

#include "base/error.h"

namespace shardproof {

const std::vector<FamilyTraits>& all_families() {
  static const std::vector<FamilyTraits> families = {
      {.name = "llama", .attention_bias_option = true, .mlp_bias_option = true},
      {.name = "llama_mtp",
       .attention_bias_option = true,
       .mlp_bias_option = true,
       .extra_heads = 1},
      {.name = "qwen2",
       .qkv_bias = true,
       .window = WindowRule::kLastLayers,
       .num_key_value_heads = 32},
      {.name = "qwen3",
       .attention_bias_option = true,
       .qk_norm = true,
       .window = WindowRule::kLastLayers,
       .num_key_value_heads = 32,
       .head_dim = 128},
      {.name = "gemma3",
       .attention_bias_option = true,
       .qk_norm = true,
       .unit_offset_norm = true,
       .output_norms = true,
       .scaled_embedding = true,
       .own_score_scale = true,
       .local_rope = true,
       .window = WindowRule::kPattern,
       .activation_key = "hidden_activation",
       .activation = "gelu_pytorch_tanh",
       .tied = true,
       .pad_token_id = 0,
       .vocab_size = 262208,
       .num_attention_heads = 8,
       .num_key_value_heads = 4,
       .head_dim = 256,
       .rope_theta = 1e6},
      {.name = "mixtral",
       .num_key_value_heads = 8,
       .rope_theta = 1e6,
       .rms_norm_eps = 1e-5,
       .experts = ExpertLayers::kAll,
       .num_experts = 8,
       .num_experts_per_tok = 2,
       .with_equal_experts = "llama"},
      {.name = "qwen2_moe",
       .qkv_bias = true,
       .qkv_bias_option = true,
       .num_key_value_heads = 16,
       .experts = ExpertLayers::kBySteps,
       .scores = RouterScores::kSoftmaxOfAll,
       .num_experts = 60,
       .num_experts_per_tok = 4,
       .moe_intermediate_size = 1408,
       .shared_expert_intermediate_size = 5632},
      {.name = "qwen3_moe",
       .attention_bias_option = true,
       .qk_norm = true,
       .num_key_value_heads = 4,
       .experts = ExpertLayers::kBySteps,
       .scores = RouterScores::kSoftmaxOfAll,
       .num_experts = 128,
       .num_experts_per_tok = 8,
       .moe_intermediate_size = 768,
       .with_equal_experts = "qwen3"},
      {.name = "gpt_oss",
       .attention_bias_option = true,
       .attention_bias = true,
       .window = WindowRule::kInTurn,
       .vocab_size = 201088,
       .num_attention_heads = 64,
       .num_key_value_heads = 8,
       .head_dim = 64,
       .rope_theta = 150000.0,
       .rms_norm_eps = 1e-5,
       .experts = ExpertLayers::kAll,
       .num_experts = 128,
       .num_experts_per_tok = 4,
       .router = "mlp.router",
       .router_bias = true,
       .sinks = true,
       .clamped_experts = true,
       .yarn_by_default = true},
      {.name = "deepseek_v3",
       .experts = ExpertLayers::kLast,
       .scores = RouterScores::kSigmoid,
       .num_experts = 256,
       .num_experts_per_tok = 8,
       .shared_expert = "mlp.shared_experts",
       .shared_gate = false,
       .shared_by_count = true,
       .latent_attention = true,
       .extra_heads = 0,
       .moe_intermediate_size = 2048},
  };
  return families;
}

const FamilyTraits* find_family(const std::string& name) {
  const auto& all = all_families();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const FamilyTraits& family) { return name == family.name; });
  return found == all.end() ? nullptr : &*found;
}

const FamilyTraits& family_traits(const std::string& name) {
  const FamilyTraits* family = find_family(name);
  SHARDPROOF_ASSERT(family != nullptr, "no family of decoders is called " + name);
  return *family;
}

std::vector<Architecture> known_architectures() {
  return {
      {"LlamaForCausalLM", "llama", "llama"},
      {"LlamaMtpForCausalLM", "llama_mtp", "llama_mtp"},
      {"Qwen2ForCausalLM", "qwen2", "qwen2"},
      {"Qwen3ForCausalLM", "qwen3", "qwen3"},
      {"MixtralForCausalLM", "mixtral", "mixtral"},
      {"Qwen2MoeForCausalLM", "qwen2_moe", "qwen2_moe"},
      {"Qwen3MoeForCausalLM", "qwen3_moe", "qwen3_moe"},
      {"GptOssForCausalLM", "gpt_oss", "gpt_oss"},
      {"DeepseekV3ForCausalLM", "deepseek_v3", "deepseek_v3"},
      {"Gemma3ForCausalLM", "gemma3_text", "gemma3"},
      {"Gemma3ForConditionalGeneration", "gemma3", "gemma3", /*text_inside=*/true},
  };
}

}  // namespace shardproof
