// Reads the router and the experts of a Hugging Face config.json. No LibTorch here.
#pragma once

#include <string>

#include "model/config.h"
#include "model/config_fields.h"

namespace shardproof {

// Sets router, expert_layers and the widths of experts; nothing for a family without experts.
// Throws a ConfigProblem.
void read_experts(const ConfigFields& config, ModelConfig& model);

// For a training that moves selection biases: gives routers one each, where the family has none.
// Such a bias is 0 in seeded weights, and in a folder that does not have it. Throws as
// check_router_rule() does.
void add_selection_bias(ModelConfig& model);
// Whether the weight `name` is such a bias, and not one of the family.
bool is_added_bias(const ModelConfig& model, const std::string& name);

}  // namespace shardproof
