// The config.json that stands beside saved weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>

namespace shardproof {

// `config` (one that ModelConfig::from_json reads) as transformers reads it too: architecture and
// dtype are filled in. Of Gemma3ForConditionalGeneration the text part, as Gemma3ForCausalLM.
nlohmann::json saved_config(const nlohmann::json& config, at::ScalarType dtype);

}  // namespace shardproof
