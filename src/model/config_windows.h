// Reads the sliding windows of a Hugging Face config.json. No LibTorch here.
#pragma once

#include "model/config.h"
#include "model/config_fields.h"

namespace shardproof {

// Sets sliding_window and sliding_layers by the family's rule. Throws a ConfigProblem.
void read_windows(const ConfigFields& config, ModelConfig& model);

}  // namespace shardproof
