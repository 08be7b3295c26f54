// The slots of a decoder's layers, which its family decides (base/families.h). No LibTorch here.
#pragma once

#include <cstdint>
#include <vector>

#include "model/slot_role.h"

namespace shardproof {

struct ModelConfig;  // config.h

// The slots of layer `layer` of a decoder, in forward order: "input_layernorm", "self_attn.q_proj",
// .. Layers of one decoder may have different slots. Those of extra heads come behind the others.
std::vector<SlotName> layer_slots(const ModelConfig& config, int64_t layer);

}  // namespace shardproof
