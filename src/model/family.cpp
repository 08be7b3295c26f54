#include "model/family.h"

#include "base/error.h"
#include "model/config.h"

namespace shardproof {

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
