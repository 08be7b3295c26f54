// Reads the router and the experts of a Hugging Face config.json. No LibTorch here.
#pragma once

#include "model/config.h"
#include "model/config_fields.h"

namespace shardproof {

// Sets router, expert_layers and the widths of experts; nothing for a family without experts.
// Throws a ConfigProblem.
void read_experts(const ConfigFields& config, ModelConfig& model);

}  // namespace shardproof
