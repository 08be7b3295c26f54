// A layer of a decoder: its slots by what they do. A slot that a family does not have is null.
#pragma once

#include <vector>

#include "model/decoder.h"
#include "model/region.h"

namespace shardproof {

struct Decoder::Block {
  bool sliding;
  Slot *input_layernorm, *q_proj, *k_proj, *v_proj, *q_norm, *k_norm, *attention, *o_proj;
  Slot *q_down, *q_down_norm, *kv_down, *kv_down_norm, *kv_up, *rotary_key;  // of latent attention
  Slot *attention_norm, *attention_residual;
  Slot *mlp_input_norm, *gate_proj, *up_proj, *activation, *down_proj, *mlp_norm, *mlp_residual;
  // In place of gate_proj to down_proj, or beside them if they are a shared MLP.
  Slot *router, *selection, *route_weights, *experts, *shared_gate, *shared_sum;
  // Of an extra head, around the others.
  Slot *embed_tokens, *embedding_norm, *stream_norm, *join, *head_norm, *head;
  std::vector<Slot*> slots;  // all of them but the head
  Region region, mlp_region;
};

}  // namespace shardproof
