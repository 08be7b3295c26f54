// The config.json beside saved weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>

namespace shardproof {

// Completes `config` (one that ModelConfig::from_json reads) for transformers with architecture and
// dtype. For Gemma3ForConditionalGeneration it returns the text part, as Gemma3ForCausalLM.
nlohmann::json saved_config(const nlohmann::json& config, at::ScalarType dtype);

}  // namespace shardproof
