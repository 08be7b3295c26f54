// What the slots of a decoder compute, whatever a family calls them. No LibTorch here.
#pragma once

#include <string>
#include <utility>

namespace shardproof {

enum class SlotKind {
  kLinear,        // x [.., in] -> [.., out]
  kEmbedding,     // ids [B, S] -> [B, S, E]
  kNorm,          // x [B, S, E] -> [B, S, E]; heads: x [B, S, H, D] -> [B, S, H, D]
  kAttention,     // q [B, S, H, D], k, v [B, S, H_kv, D] -> [B, S, H*D]
  kResidual,      // x, y -> x + y
  kLmHead,        // x [B, S, E] -> logits [B, S, V]
  kActivation,    // gate, up [B, S, F] -> silu(gate) * up, or gelu
  kRouter,        // x [B, S, E] -> logits [B, S, N] in the wider type
  kSelection,     // logits -> ids [B, S, K] int64, ascending; -1 for padding
  kRouteWeights,  // logits, ids -> weights [B, S, K] in the wider type
  kExperts,       // x [B, S, E], ids, weights -> [B, S, E]
  kSharedSum,  // routed, shared [B, S, E], gate [B, S, 1] -> routed + sigmoid(gate) * shared; or no
               // gate -> routed + shared
  kRotaryKey,  // x [B, S, R] -> x, of all tokens that attention sees
};

// A slot's place in the computation. Plans of parallel styles go by it, not by the slot's name.
enum class SlotRole {
  kEmbedding,
  kStreamNorm,  // of the residual stream, or of what is added to it
  kQuery,
  kKey,
  kValue,
  kQueryDown,  // this and the next four: of latent attention, which has no kKey and kValue
  kLatentNorm,
  kKeyValueDown,
  kRotaryKey,
  kKeyValueUp,
  kQueryNorm,
  kKeyNorm,
  kAttention,
  kAttentionOut,
  kResidual,
  kGate,
  kUp,
  kActivation,
  kDown,
  kRouter,  // this and the next three: in a layer with experts, where the four above are its shared
            // MLP, if it has one
  kSelection,
  kRouteWeights,
  kExperts,
  kSharedGate,  // this and the next one: where a shared MLP stands beside the experts
  kSharedSum,
  kExtraJoin,  // of an extra head: x [.., 2E] -> [.., E], embedding and stream beside each other
  kLmHead,
};

constexpr SlotKind kind_of(SlotRole role) {
  constexpr std::pair<SlotRole, SlotKind> kKinds[] = {
      {SlotRole::kEmbedding, SlotKind::kEmbedding},
      {SlotRole::kStreamNorm, SlotKind::kNorm},
      {SlotRole::kQueryNorm, SlotKind::kNorm},
      {SlotRole::kKeyNorm, SlotKind::kNorm},
      {SlotRole::kLatentNorm, SlotKind::kNorm},
      {SlotRole::kRotaryKey, SlotKind::kRotaryKey},
      {SlotRole::kAttention, SlotKind::kAttention},
      {SlotRole::kResidual, SlotKind::kResidual},
      {SlotRole::kActivation, SlotKind::kActivation},
      {SlotRole::kRouter, SlotKind::kRouter},
      {SlotRole::kSelection, SlotKind::kSelection},
      {SlotRole::kRouteWeights, SlotKind::kRouteWeights},
      {SlotRole::kExperts, SlotKind::kExperts},
      {SlotRole::kSharedSum, SlotKind::kSharedSum},
      {SlotRole::kLmHead, SlotKind::kLmHead}};
  for (const auto& [of, kind] : kKinds) {
    if (of == role) return kind;
  }
  return SlotKind::kLinear;
}

// Whether a layer treats each token of the residual stream, or of what is added to it, separately.
// Parallel styles may give it some of the tokens alone; its weight, if it has one, is [E].
constexpr bool is_on_stream(SlotRole role) {
  return role == SlotRole::kStreamNorm || role == SlotRole::kResidual;
}

struct SlotName {
  std::string name;  // "self_attn.q_proj", or with the layer before it
  SlotRole role;
  bool operator==(const SlotName&) const = default;
};

}  // namespace shardproof
