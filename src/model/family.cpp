#include "model/family.h"

#include <array>
#include <string_view>

#include "base/error.h"
#include "model/config.h"

namespace shardproof {
namespace {

constexpr FamilyTraits kLlama{
    .name = "llama", .attention_bias_option = true, .mlp_bias_option = true};

constexpr FamilyTraits kLlamaMtp{
    .name = "llama_mtp", .attention_bias_option = true, .mlp_bias_option = true, .extra_heads = 1};

constexpr FamilyTraits kQwen2{.name = "qwen2",
                              .qkv_bias = true,
                              .window = WindowRule::kLastLayers,
                              .num_key_value_heads = 32};

constexpr FamilyTraits kQwen3{.name = "qwen3",
                              .attention_bias_option = true,
                              .qk_norm = true,
                              .window = WindowRule::kLastLayers,
                              .num_key_value_heads = 32,
                              .head_dim = 128};

constexpr FamilyTraits kGemma3{.name = "gemma3",
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
                               .rope_theta = 1e6};

constexpr FamilyTraits kMixtral{.name = "mixtral",
                                .num_key_value_heads = 8,
                                .rope_theta = 1e6,
                                .rms_norm_eps = 1e-5,
                                .experts = ExpertLayers::kAll,
                                .num_experts = 8,
                                .num_experts_per_tok = 2};

constexpr FamilyTraits kQwen3Moe{.name = "qwen3_moe",
                                 .attention_bias_option = true,
                                 .qk_norm = true,
                                 .num_key_value_heads = 4,
                                 .experts = ExpertLayers::kBySteps,
                                 .num_experts = 128,
                                 .num_experts_per_tok = 8,
                                 .moe_intermediate_size = 768};

constexpr FamilyTraits kQwen2Moe{.name = "qwen2_moe",
                                 .qkv_bias = true,
                                 .qkv_bias_option = true,
                                 .num_key_value_heads = 16,
                                 .experts = ExpertLayers::kBySteps,
                                 .num_experts = 60,
                                 .num_experts_per_tok = 4,
                                 .moe_intermediate_size = 1408,
                                 .shared_expert_intermediate_size = 5632};

constexpr FamilyTraits kGptOss{.name = "gpt_oss",
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
                               .yarn_by_default = true};

constexpr FamilyTraits kDeepseekV3{.name = "deepseek_v3",
                                   .experts = ExpertLayers::kLast,
                                   .num_experts = 256,
                                   .num_experts_per_tok = 8,
                                   .shared_expert = "mlp.shared_experts",
                                   .shared_gate = false,
                                   .latent_attention = true,
                                   .extra_heads = 0,
                                   .moe_intermediate_size = 2048};

constexpr std::array<const FamilyTraits*, 10> kFamilies = {
    &kLlama,   &kLlamaMtp, &kQwen2,    &kQwen3,  &kGemma3,
    &kMixtral, &kQwen2Moe, &kQwen3Moe, &kGptOss, &kDeepseekV3};

}  // namespace

const FamilyTraits& family_traits(const std::string& name) {
  for (const FamilyTraits* family : kFamilies) {
    if (name == std::string_view(family->name)) return *family;
  }
  SHARDPROOF_ASSERT(false, "no family of decoders is called " + name);
  return kLlama;
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

std::vector<SlotName> layer_slots(const ModelConfig& config, int64_t layer) {
  SHARDPROOF_ASSERT(layer >= 0 && layer < config.layers_with_heads(), "the model has this layer");
  using Role = SlotRole;
  const FamilyTraits& family = config.traits();
  const bool is_extra_head = layer >= config.num_hidden_layers;
  std::vector<SlotName> slots;
  const auto add = [&](std::initializer_list<SlotName> more) {
    slots.insert(slots.end(), more.begin(), more.end());
  };
  if (is_extra_head) {
    add({{"embed_tokens", Role::kEmbedding},
         {"enorm", Role::kStreamNorm},
         {"hnorm", Role::kStreamNorm},
         {"eh_proj", Role::kExtraJoin}});
  }
  add({{"input_layernorm", Role::kStreamNorm}});
  if (config.latent.q_rank > 0) {
    add({{"self_attn.q_a_proj", Role::kQueryDown},
         {"self_attn.q_a_layernorm", Role::kLatentNorm},
         {"self_attn.q_b_proj", Role::kQuery}});
  } else {
    add({{"self_attn.q_proj", Role::kQuery}});
  }
  if (family.latent_attention) {
    add({{"self_attn.kv_a_proj_with_mqa", Role::kKeyValueDown},
         {"self_attn.kv_a_layernorm", Role::kLatentNorm},
         {"self_attn.kv_b_proj", Role::kKeyValueUp},
         {"self_attn.rotary_key", Role::kRotaryKey}});
  } else {
    add({{"self_attn.k_proj", Role::kKey}, {"self_attn.v_proj", Role::kValue}});
  }
  if (family.qk_norm) {
    add({{"self_attn.q_norm", Role::kQueryNorm}, {"self_attn.k_norm", Role::kKeyNorm}});
  }
  add({{"self_attn.attention", Role::kAttention}, {"self_attn.o_proj", Role::kAttentionOut}});
  if (family.output_norms) add({{"post_attention_layernorm", Role::kStreamNorm}});
  add({{"attention_residual", Role::kResidual}});
  add({{family.output_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm",
        Role::kStreamNorm}});
  if (config.has_experts(layer)) {
    const std::string router = family.router;
    add({{router, Role::kRouter},
         {router + ".ids", Role::kSelection},
         {router + ".weights", Role::kRouteWeights},
         {"mlp.experts", Role::kExperts}});
  }
  const bool shared = config.has_shared_expert(layer);
  if (shared || !config.has_experts(layer)) {
    const std::string mlp = shared ? family.shared_expert + std::string(".") : "mlp.";
    add({{mlp + "gate_proj", Role::kGate},
         {mlp + "up_proj", Role::kUp},
         {mlp + "activation", Role::kActivation},
         {mlp + "down_proj", Role::kDown}});
  }
  if (shared) {
    if (family.shared_gate) add({{"mlp.shared_expert_gate", Role::kSharedGate}});
    add({{"mlp.shared_expert_sum", Role::kSharedSum}});
  }
  if (family.output_norms) add({{"post_feedforward_layernorm", Role::kStreamNorm}});
  add({{"mlp_residual", Role::kResidual}});
  if (is_extra_head) {
    add({{"shared_head.norm", Role::kStreamNorm}, {"shared_head.head", Role::kLmHead}});
  }
  return slots;
}

}  // namespace shardproof
