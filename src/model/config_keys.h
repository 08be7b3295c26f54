// Which keys of a Hugging Face config.json are read, refused, or left alone. No LibTorch here.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/families.h"
#include "model/config_fields.h"

namespace shardproof {

// The number of extra heads, under the name of deepseek_v3's config.json; the weight of their
// losses, and whether one layer serves all of them, under the names of NVIDIA/Megatron-LM
// megatron/core/transformer/transformer_config.py.
inline constexpr const char* kExtraHeadsKey = "num_nextn_predict_layers";
inline constexpr const char* kExtraLossKey = "mtp_loss_scaling_factor";
inline constexpr const char* kRepeatedLayerKey = "mtp_use_repeated_layer";

// The keys for which the readers of a family look, whatever the values of others are (config.cpp).
std::set<std::string> keys_of_family(const std::string& family);

// Throws a ConfigProblem: bad input for a key that is nearly one that is read, a refusal of a key
// that changes what a decoder computes in a way that no family here has.
void check_config_keys(const ConfigFields& decoder);
// The same for an option that this family does not have, or a value that nothing here supports.
void check_family_keys(const ConfigFields& decoder, const FamilyTraits& family);
// As check_config_keys for an object of rotary settings, of which `known` are read; every other key
// is refused.
void check_rope_keys(const ConfigFields& rope, const std::vector<std::string>& known);

// The keys of a config that nothing reads, such as "torch_dtype", in the order of their names.
std::vector<std::string> unread_config_keys(const nlohmann::json& config);

}  // namespace shardproof
